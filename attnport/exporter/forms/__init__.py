"""The forms that an attention can be lowered to; targets choose among them."""
