"""Only the reference of rotary position embedding is here."""
