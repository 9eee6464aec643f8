"""The command line `ledgermq`: configuration files, node assembly, the local cluster, the demo."""
