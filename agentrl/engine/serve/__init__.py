"""The local engine behind SGLang's wire protocol: `agentrl engine serve local`."""
