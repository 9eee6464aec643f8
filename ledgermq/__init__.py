"""LedgerMQ, as user programs import it: the client, the remoting protocol and the message formats."""
