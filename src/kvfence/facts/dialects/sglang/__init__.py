"""SGLang, from 0.4.6 on."""

ENGINE = "sglang"
