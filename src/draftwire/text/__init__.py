"""Text and ids: streaming text, stop strings, prompts and chats; needs only a tokenizer object."""
