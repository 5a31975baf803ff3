"""Every exported metric: its name, its kind, and its help text.

Daemons count under the names that STATS has on the wire (`daemons/metrics.py`, `PROTOCOL.md`). Each
of them has a help text here, so that no number is exported without an explanation: tests compare
this table with the sources of the daemons, and METRICS.md with what is exported. A number of a
newer daemon, which this table does not know, is exported under its own name.
"""

from __future__ import annotations

from typing import Final

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

# The `counters` of STATS and their help texts. Names that end in _total only grow.
COUNTERS: Final[dict[str, str]] = {
    "requests_total": "Requests of clients to this daemon.",
    "requests_invalid_total": "Malformed requests; they were answered with an error.",
    "requests_dropped_total": "Messages of clients without a request id; they were not answered.",
    "requests_crashed_total": "Requests that raised an unexpected error; the log has the trace.",
    "handshakes_refused_total": "Connections refused in the handshake: no key, or an unknown one.",
    "handshakes_unfinished_total": "Connections that ended during the handshake.",
    "connections_cut_total": "Connections closed because unread messages took too much memory.",
    "replies_dropped_total": "Replies that the client was not there for, or did not read.",
    "messages_with_too_many_frames_total": "Messages of clients with more frames than allowed.",
    "messages_stored_total": "Messages that became durable in partitions led by this broker.",
    "produced_bytes_total": "Bytes of the batches acknowledged to producers.",
    "produce_results_total": "Batches that were answered, with success or an error.",
    "fetched_messages_total": "Messages sent to consumers.",
    "fetched_batches_total": "Batches sent to consumers.",
    "fetched_bytes_total": "Bytes of the batches sent to consumers.",
    "reads_failed_total": "Reads that failed because of damaged data or a disk error.",
    "wal_bytes_total": "Bytes written to the write-ahead log.",
    "disk_free_bytes": "Free space on the disk of this daemon.",
    "damage_found_total": "Segments found to hold unreadable data.",
    "damage_repaired_total": "Damaged segments that were repaired and removed.",
    "entries_repaired_total": "Unreadable entries written again, from memory or another replica.",
    "entries_given_total": "Entries sent to other replicas that could not read their own copy.",
    "entries_given_wrong_total": "Entries received for repair that did not match the lost ones.",
    "scrubbed_bytes_total": "Bytes of the log read and verified by the scrubber.",
    "groups_closed_total": "Replicas closed because their data contradicted the other replicas.",
    "disk_stalls_total": "Times the disk did not answer for so long that leadership was given up.",
    "disk_used_bytes": "Bytes of the log's segments and the store on the disk.",
    "wal_segments": "Segments of the write-ahead log.",
    "wal_oldest_segment": "Number of the oldest segment that is still needed.",
    "reclaimed_bytes_total": "Bytes of segments that were removed because nothing needed them.",
    "reclaimed_segments_total": "Segments that were removed.",
    "rewritten_bytes_total": "Bytes of live records written again to free their segment.",
    "reclaim_passes_total": "Passes over the segments that look for space to free.",
    "reclaim_passes_failed_total": "Passes over the segments that failed; they are retried.",
    "key_steps_total": "KEY_STEP entries proposed: each ages produce keys by a minute.",
    "retention_starts_total": "START entries proposed by retention.",
    "log_starts_moved_total": "Times the beginning of a group's log was cut off.",
    "snapshots_installed_total": "Snapshots installed from a leader.",
    "disk_full_total": "Times the log had to wait for free space on a full disk.",
    "raft_elections_total": "Elections won by replicas of this daemon.",
    "late_turns_total": "Turns that came late: the daemon did not run, or had much to do.",
    "peer_silences_total": "Times another daemon was silent for so long that it counted as dead.",
    "members_changed_total": "Membership changes proposed to groups led by this daemon.",
    "members_postponed_total": "Membership changes not proposed yet; they are retried.",
    "transfers_refused_total": "Leadership transfers that could not be started.",
    "greetings_refused_total": "Connections of daemons refused for their cluster, disk or number.",
    "peer_messages_refused_total": "Messages of other daemons that were refused.",
    "peer_messages_dropped_total": "Messages of other daemons that could not be answered.",
    "peer_messages_crashed_total": "Messages of other daemons that raised an error here.",
    "peer_replies_dropped_total": "Replies to other daemons that could not be sent.",
    "peer_packets_malformed_total": "Malformed Raft packets received.",
    "peer_packets_dropped_total": "Raft packets that could not be sent.",
    "peer_fetches_failed_total": "Entries for followers that could not be read; they are retried.",
    "peer_addresses_invalid_total": "Addresses of other daemons that could not be used.",
    "link_messages_invalid_total": "Replies of other daemons that could not be decoded.",
    "link_messages_crashed_total": "Replies of other daemons that raised an unexpected error here.",
    "beat_bytes_total": "Bytes of heartbeats that this broker sent to managers.",
    "orders_bytes_total": "Bytes of orders that this manager sent to brokers.",
    "beats_dropped_total": "Heartbeats between brokers and managers that could not be sent.",
    "beats_refused_total": "Heartbeats of this manager that another manager refused.",
    "orders_invalid_total": "Orders of managers that this broker did not understand.",
    "duties_postponed_total": "Operations of the managers' leader not proposed yet; retried.",
}

# The `gauges` of STATS: their exported names and help texts.
GAUGES: Final[dict[str, tuple[str, str]]] = {
    "topics": ("topics", "Topics, as this manager knows them."),
    "partitions": ("partitions", "Partitions of all topics, as this manager knows them."),
    "brokers": ("brokers", "Registered brokers, as this manager knows them."),
    "brokers_alive": ("brokers_alive", "Brokers from which this manager receives heartbeats."),
    "updates_waiting": ("updates_waiting", "Updates waiting for a majority of the managers."),
    "applied": (
        "metadata_applied_index",
        "Index of the last metadata change applied by this manager.",
    ),
    "leads": ("manager_leads", "1 on the manager that is leader and ready, else 0."),
    "groups": ("replicas", "Replicas of partitions that this broker holds."),
    "groups_led": ("partitions_led", "Partitions that this broker leads."),
    "produce_inflight_bytes": (
        "produce_inflight_bytes",
        "Bytes of batches that are not answered yet.",
    ),
    "fetches_waiting": ("fetches_waiting", "Requests of consumers waiting for messages."),
}

HISTOGRAMS: Final[dict[str, str]] = {
    "wal_flush_seconds": "Duration of one write and sync of the write-ahead log.",
}

# Metrics that this process adds, from the managers' answers and from its own work.
OTHERS: Final[dict[str, tuple[str, str]]] = {
    "build_info": (GAUGE, "Version of the gateway and name of the cluster; always 1."),
    "up": (GAUGE, "1 if the daemon answered this scrape in time."),
    "cluster_reachable": (GAUGE, "1 if a manager answered this scrape in time."),
    "healthy": (GAUGE, "1 if the managers have a leader and it knows of no problem."),
    "problems": (GAUGE, "Problems known to the managers' leader, by kind."),
    "process_cpu_seconds_total": (COUNTER, "Processor time used by the daemon."),
    "process_resident_memory_bytes": (GAUGE, "Memory used by the daemon."),
    "broker_load_messages_per_second": (
        GAUGE,
        "Messages stored per second, from the broker's last heartbeat.",
    ),
    "broker_last_seen_timestamp_seconds": (GAUGE, "Time of the broker's last heartbeat."),
    "broker_disk_low": (GAUGE, "1 if the broker refuses writes because its disk is full."),
    "broker_replicas": (GAUGE, "Replicas assigned to the broker."),
    "broker_replicas_leaving": (GAUGE, "Replicas that are being moved off the broker."),
    "broker_draining": (GAUGE, "1 if the broker is being drained or is drained."),
    "topic_partitions": (GAUGE, "Partitions of the topic."),
    "topic_replicas": (GAUGE, "Copies that each partition of the topic should have."),
    "topic_bytes": (GAUGE, "Bytes of the batches kept in the topic."),
    "partition_start_offset": (GAUGE, "Offset of the first message that is kept."),
    "partition_end_offset": (
        GAUGE,
        "Offset after the last message; grows by one for each message.",
    ),
    "partition_bytes": (GAUGE, "Bytes of the batches kept in the partition."),
    "partition_leader": (GAUGE, "Number of the broker that leads the partition; 0: none."),
    "producers": (GAUGE, "Registered producers, active (seen within inactive_ms) or inactive."),
    "consumers": (GAUGE, "Registered consumers, active (seen within inactive_ms) or inactive."),
    "consumer_lag_messages": (GAUGE, "Messages left for the consumer."),
    "group_members": (GAUGE, "Members of the consumer group."),
    "group_lag_messages": (GAUGE, "Messages of the topic left for the consumer group."),
    "raft_groups": (GAUGE, "Raft groups with a replica on this daemon, by its role."),
    "raft_term": (GAUGE, "Highest term among the Raft groups of this daemon."),
    "raft_commit_index": (GAUGE, "Sum of the commit indexes of the Raft groups of this daemon."),
    "raft_applied_index": (GAUGE, "Sum of the applied indexes of the Raft groups of this daemon."),
    "raft_groups_refused": (
        GAUGE,
        "Replicas that can't take part or be repaired; see the log.",
    ),
    "replicas_unhealthy": (GAUGE, "Replicas of this daemon that are not healthy, by health."),
    "omitted": (GAUGE, "Rows of a kind that were left out to keep the answer short."),
    "http_requests_total": (COUNTER, "Requests answered by this gateway."),
    "http_request_duration_seconds": (HISTOGRAM, "Time to answer a request."),
    "http_requests_in_progress": (GAUGE, "Requests being answered now."),
    "http_connections_dropped_total": (COUNTER, "Connections closed for lack of room, by reason."),
    "scrape_duration_seconds": (
        GAUGE,
        "Time to collect the numbers of the cluster for this scrape.",
    ),
}


def all_names() -> dict[str, tuple[str, str]]:
    """Return every metric: its name without prefix, its kind, its help text."""
    kinds = (COUNTER if name.endswith("_total") else GAUGE for name in COUNTERS)
    return {
        **OTHERS,
        **{name: (kind, COUNTERS[name]) for name, kind in zip(COUNTERS, kinds, strict=True)},
        **{name: (GAUGE, help_) for name, help_ in GAUGES.values()},
        **{name: (HISTOGRAM, help_) for name, help_ in HISTOGRAMS.items()},
    }
