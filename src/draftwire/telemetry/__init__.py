"""What an operator sees: metrics, /healthz and logs; nothing here decides anything."""
