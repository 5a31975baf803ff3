"""Every metric that daemons' own numbers become: its name, its kind, and what it means.

Daemons count under the names that STATS has on the wire (`daemons/metrics.py`, `PROTOCOL.md`).
Here each of them gets a line of help, so that no number is exported that nobody can explain: the
tests compare this table with the sources of the daemons, and METRICS.md with what is exported.
A number of a newer daemon, which this table does not know, is exported under its own name.
"""

from __future__ import annotations

from typing import Final

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

# Of the `counters` of STATS: what it says. Names that end in _total only grow.
COUNTERS: Final[dict[str, str]] = {
    "requests_total": "Requests that clients sent to this daemon.",
    "requests_invalid_total": "Requests that were malformed, and were answered with an error.",
    "requests_dropped_total": "Messages of clients that had no request id, and got no answer.",
    "requests_crashed_total": "Requests that met a mistake in the daemon; its log has the trace.",
    "handshakes_refused_total": "Connections whose handshake failed: another key, or none, say.",
    "handshakes_unfinished_total": "Connections that ended in the handshake: a probe, say.",
    "connections_cut_total": "Connections that brought more than fits into memory, and were cut.",
    "replies_dropped_total": "Answers whose client was gone or did not take them.",
    "messages_with_too_many_frames_total": "Messages of clients over the limit of frames.",
    "messages_stored_total": "Messages that became durable in partitions led by this broker.",
    "produced_bytes_total": "Bytes of the batches that were acknowledged to their producers.",
    "produce_results_total": "Batches that were answered, refusals included.",
    "fetched_messages_total": "Messages that were sent to consumers.",
    "fetched_batches_total": "Batches that were sent to consumers.",
    "fetched_bytes_total": "Bytes of the batches that were sent to consumers.",
    "reads_failed_total": "Reads that met damage or an error of the disk.",
    "wal_bytes_total": "Bytes that were written to the write-ahead log.",
    "disk_free_bytes": "Free room on the disk of this daemon.",
    "damage_found_total": "Segments in which something was found that can't be read.",
    "damage_repaired_total": "Of these, those that were emptied and removed.",
    "entries_repaired_total": "Entries that could not be read, and were written again.",
    "entries_given_total": "Entries that this daemon gave to others which could not read theirs.",
    "entries_given_wrong_total": "Entries of others that were not the ones that were lost here.",
    "scrubbed_bytes_total": "Bytes of the log that were read in search of damage.",
    "groups_closed_total": "Replicas that were closed, as others contradicted what they know.",
    "disk_stalls_total": "Times that the disk took so long that leadership was given up.",
    "disk_used_bytes": "Bytes that the log's segments and the store take on the disk.",
    "wal_segments": "Segments of the write-ahead log.",
    "wal_oldest_segment": "Number of the oldest segment that is still needed.",
    "reclaimed_bytes_total": "Bytes of segments that were removed, as nobody needed them.",
    "reclaimed_segments_total": "Segments that were removed.",
    "rewritten_bytes_total": "Bytes that were written again to empty segments of few live records.",
    "reclaim_passes_total": "Passes over the segments in search of room.",
    "reclaim_passes_failed_total": "Of these, those that ended with an error; tried again.",
    "key_steps_total": "Steps proposed by which the keys of produce requests grow older.",
    "retention_starts_total": "Starts of partitions that retention proposed to move.",
    "log_starts_moved_total": "Times that a group's log was cut at its beginning.",
    "snapshots_installed_total": "States that this daemon took from a leader, having been away.",
    "disk_full_total": "Times that the log waited for room on a disk that was full.",
    "raft_elections_total": "Elections that replicas of this daemon have won.",
    "members_changed_total": "Changes of members that this daemon proposed to groups it leads.",
    "members_postponed_total": "Of these, those that could not be proposed yet; tried again.",
    "transfers_refused_total": "Hand-overs of leadership that could not be begun.",
    "greetings_refused_total": "Greetings of daemons of another cluster, disk or number.",
    "peer_messages_refused_total": "Messages of other daemons that were refused.",
    "peer_messages_dropped_total": "Messages of other daemons that could not be answered.",
    "peer_messages_crashed_total": "Messages of other daemons that met a mistake in this one.",
    "peer_replies_dropped_total": "Answers to other daemons that could not be sent.",
    "peer_packets_malformed_total": "Packets of consensus that were malformed.",
    "peer_packets_dropped_total": "Packets of consensus that could not be sent.",
    "peer_fetches_failed_total": "Entries for followers that could not be read; tried again.",
    "peer_addresses_invalid_total": "Addresses of other daemons that could not be used.",
    "link_messages_invalid_total": "Answers of other daemons that could not be decoded.",
    "link_messages_crashed_total": "Answers of other daemons that met a mistake in this one.",
    "beats_dropped_total": "Beats to managers or from them that could not be sent.",
    "beats_refused_total": "Beats of daemons that were refused.",
    "orders_invalid_total": "Orders of managers that this broker did not understand.",
    "duties_postponed_total": "Work of the managers' leader that was put off.",
}

# Of the `gauges` of STATS: their names here, and what they say.
GAUGES: Final[dict[str, tuple[str, str]]] = {
    "topics": ("topics", "Topics, as this manager knows them."),
    "partitions": ("partitions", "Partitions of all topics, as this manager knows them."),
    "brokers": ("brokers", "Brokers that are registered, as this manager knows them."),
    "brokers_alive": ("brokers_alive", "Brokers that this manager hears."),
    "updates_waiting": ("updates_waiting", "Updates that wait for a majority of the managers."),
    "applied": ("metadata_applied_index", "Index of the last change of metadata applied here."),
    "leads": ("manager_leads", "1 for the manager that leads and is ready."),
    "groups": ("replicas", "Replicas of partitions that this broker holds."),
    "groups_led": ("partitions_led", "Partitions that this broker leads."),
    "produce_inflight_bytes": ("produce_inflight_bytes", "Bytes of batches not answered yet."),
    "fetches_waiting": ("fetches_waiting", "Requests of consumers that wait for messages."),
}

HISTOGRAMS: Final[dict[str, str]] = {
    "wal_flush_seconds": "How long one write and sync of the write-ahead log took.",
}

# What this process adds, from the answers of the managers and from its own work.
OTHERS: Final[dict[str, tuple[str, str]]] = {
    "build_info": (GAUGE, "Version of the gateway, and name of the cluster; always 1."),
    "up": (GAUGE, "1 if the daemon answered this scrape in time."),
    "cluster_reachable": (GAUGE, "1 if a manager answered this scrape in time."),
    "healthy": (GAUGE, "1 if the managers have a leader, and it knows of no problem."),
    "problems": (GAUGE, "Problems that the managers' leader knows of, by kind."),
    "process_cpu_seconds_total": (COUNTER, "Processor time that the daemon has used."),
    "process_resident_memory_bytes": (GAUGE, "Memory that the daemon holds."),
    "broker_load_messages_per_second": (GAUGE, "Messages stored per second, by its last beat."),
    "broker_last_seen_timestamp_seconds": (GAUGE, "When managers heard of the broker last."),
    "broker_disk_low": (GAUGE, "1 if the broker refuses writes because its disk is full."),
    "broker_replicas": (GAUGE, "Replicas that the broker is to hold."),
    "broker_replicas_leaving": (GAUGE, "Replicas that others are about to hold in its place."),
    "broker_draining": (GAUGE, "1 if the broker is giving its replicas away, or has."),
    "topic_partitions": (GAUGE, "Partitions of the topic."),
    "topic_replicas": (GAUGE, "Copies that each partition of the topic is to have."),
    "topic_bytes": (GAUGE, "Bytes of the batches that the topic keeps."),
    "partition_start_offset": (GAUGE, "Offset of the first message that is kept."),
    "partition_end_offset": (GAUGE, "Offset behind the last message; a counter of messages."),
    "partition_bytes": (GAUGE, "Bytes of the batches that the partition keeps."),
    "partition_leader": (GAUGE, "Number of the broker that leads the partition; 0: none."),
    "producers": (GAUGE, "Registered producers, by whether they were heard of lately."),
    "consumers": (GAUGE, "Registered consumers, by whether they were heard of lately."),
    "consumer_lag_messages": (GAUGE, "Messages that are left for the consumer."),
    "group_members": (GAUGE, "Members of the consumer group."),
    "group_lag_messages": (GAUGE, "Messages of the topic that are left for the consumer group."),
    "raft_groups": (GAUGE, "Raft groups of which this daemon has a replica, by its role."),
    "raft_term": (GAUGE, "Highest term among the Raft groups of this daemon."),
    "raft_commit_index": (GAUGE, "Sum of the commit indexes of the Raft groups of this daemon."),
    "raft_applied_index": (GAUGE, "Sum of the applied indexes of the Raft groups of this daemon."),
    "raft_groups_refused": (GAUGE, "Raft groups whose data can't be used; see the log."),
    "omitted": (GAUGE, "Rows of a kind that were left out to keep the answer short."),
    "http_requests_total": (COUNTER, "Requests that this gateway has answered."),
    "http_request_duration_seconds": (HISTOGRAM, "How long answering a request took."),
    "http_requests_in_progress": (GAUGE, "Requests that are being answered now."),
    "http_connections_dropped_total": (COUNTER, "Connections that had to give way, by reason."),
    "scrape_duration_seconds": (GAUGE, "How long asking the cluster took for this answer."),
}


def all_names() -> dict[str, tuple[str, str]]:
    """Every metric: its name without prefix, its kind, its help."""
    kinds = (COUNTER if name.endswith("_total") else GAUGE for name in COUNTERS)
    return {
        **OTHERS,
        **{name: (kind, COUNTERS[name]) for name, kind in zip(COUNTERS, kinds, strict=True)},
        **{name: (GAUGE, help_) for name, help_ in GAUGES.values()},
        **{name: (HISTOGRAM, help_) for name, help_ in HISTOGRAMS.items()},
    }
