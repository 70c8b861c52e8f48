"""SGLang server mode: install, launch, watch and use real SGLang servers over HTTP."""
