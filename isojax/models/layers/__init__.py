"""What layers are made of: a family composes these, or brings modules of its own."""
