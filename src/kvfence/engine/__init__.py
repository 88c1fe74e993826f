"""The embedded disaggregated engine: prefill and decode processes over the fence, to try, teach and test on."""
