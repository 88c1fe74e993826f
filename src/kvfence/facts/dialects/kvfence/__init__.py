"""kvfence's own engine: it answers by SGLang's names, and states its mechanisms beside them."""

ENGINE = "kvfence"
