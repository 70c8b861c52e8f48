"""What vLLM's workers do for agentrl; each method is called by `/collective_rpc`."""

from pathlib import Path

from safetensors.torch import load_file
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)


class LoadsWeights:
    """Beside the methods of vLLM's own worker."""

    def agentrl_describe(self):
        """What the server is."""
        config = self.vllm_config
        return {
            "model": config.model_config.model,
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "quantization": config.model_config.quantization,
            "logprobs_mode": config.model_config.logprobs_mode,
            "context_length": config.model_config.max_model_len,
            "tp_size": config.parallel_config.tensor_parallel_size,
            "dp_size": config.parallel_config.data_parallel_size,
            "kv_tokens": self.cache_config.num_gpu_blocks * self.cache_config.block_size,
        }

    def agentrl_load(self, folder):
        """Take the weights of a file, and tell what got none."""
        model = self.model_runner.get_model()
        missing = {name for name, _ in model.named_parameters()}
        with set_current_vllm_config(self.vllm_config):
            initialize_layerwise_reload(model)
            missing -= model.load_weights(load_file(Path(folder, "model.safetensors")).items())
            finalize_layerwise_reload(model, self.vllm_config.model_config)
            for module in model.modules():
                # On a CPU a head that is tied to the embedding multiplies by a packed copy of it,
                # which the loader forgets.
                if getattr(module, "cpu_linear", None) and module.weight.numel():
                    module.quant_method.process_weights_after_loading(module)
        return sorted(missing)

    def agentrl_shapes(self):
        """Of all weights, by the model's own names; on a CPU packed ones have none."""
        model = self.model_runner.get_model()
        return {name: list(weight.shape) for name, weight in model.named_parameters()}

    def agentrl_rows(self, name, num):
        """The first rows of a weight."""
        return self.model_runner.get_model().get_parameter(name)[:num].float().tolist()
