"""Block drafters (DSpark, DFlash): one pass a proposal, fed with hidden states of the target.

Nothing is imported here: what a checkpoint is can be told without torch (``formats``).
"""
