"""The simulated SGLang server: SGLang's HTTP API with deterministic answers and a model of its speed."""
