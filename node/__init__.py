"""Nodes as processes: configuration, the choice of the log, assembly of a broker, start and stop.

properties -> file_settings -> config -> NodeConfig, NameServerConfig      (one file and the command line)
keys              every key, from the declarations and keys_without_effect.tsv
node_config       the configuration of one broker process: broker, log, mode of replication
addresses         which address of this machine others should dial
notices           what is printed at the start: keys without effect, risks of the TLS settings
kept_settings     settings changed at run time, kept for the next start
explain           `ledgermq config explain`
store_settings    from NodeConfig to the settings of the store and of the Raft log
log_choice        opens the store on the log of the configured mode
broker_assembly   a broker from its parts: start, serve, stop
run               one node in the foreground, until a signal
errors            what a command says when it cannot do its work
"""
