"""How a question reaches clients: `local` on this machine's cores, `flower` on other machines."""
