"""Raft, computed: one replica's decisions, many groups' conversations, no clock, no socket, no
file.

Every acknowledgement of the system goes through this folder. It imports the standard library
only. Read it in this order:

1. `types`, `health`: entries, messages, effects, settings, states: the vocabulary.
2. `quorum`, `log`, `progress`, `membership`: arithmetic and books.
3. `node`: what all roles share, and the table of their changes.
4. `follower`, `candidate`, `leader`: what each role does with each message.
5. `suspicion`: for how long another node may be silent.
6. `groups`: all groups of a process, so that ten thousand quiet ones cost nothing.

How a caller turns the crank, once a turn:

    host.begin_turn(now, wait_ms)
    host.receive(source, packet, now)   host.touch(group).propose(items)   host.tick(now)
    effects, packets = host.end_turn(now)
    # effects.persist to the journal, in this order; packets to the peers; effects.apply to the
    # state machine. Later, when the journal says so:
    host.touch(group).persisted(term, index, now, host.out)

Durability is an event: nothing in the packets claims what the journal did not report before.
`DESIGN.md` has the reasons; `tests/RULES.md` has each rule (R1 to R33) in a sentence, with its
section in the paper.
"""
