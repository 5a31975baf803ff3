"""Commands for the cluster that runs on this machine.

`up` and `down` start and stop it, `status` lists its processes, `health` lists the problems of any
cluster, `doctor` checks whether this machine can run one, `demo` kills leaders and shows that no
acknowledged message is lost.

Comes in: `--data DIR`, or the address of a cluster. Goes out: text or JSON, and an exit code. These
commands work through the agent (`daemons/agent`) and the public client; they keep no state.
"""
