"""From messages and subscriptions to deliveries: what was sent, to whom, and what became of it."""
