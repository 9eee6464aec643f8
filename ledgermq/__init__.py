"""LedgerMQ: what user programs import. The client, the remoting protocol and the message formats."""
