"""Cleaning: which old files go, and when a disk is too full to take messages.

    config -> what an operator says (RocketMQ's keys)        disk_space -> how full the disks are
    rules  -> one verdict a round, pure                      cleaner    -> carries it out, off the loop's thread

Read `rules` first. Nothing here opens a file of the log: the log drops its own (`ReplicatedLog.trim`).
"""
