from tests.tokenizers import chatml, folder, make_folder, qwen_like, tools

__all__ = ["chatml", "folder", "make_folder", "qwen_like", "tools"]
