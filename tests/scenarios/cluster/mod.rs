//! What agents and the coordinator promise together.

// The chart's policy refuses pods that reach tapes of others.
mod chart;

// A killed rank is on its tape and in the capture.
mod dead_rank;

// A backup of a running coordinator, restored, and what agents send again.
mod backup;

// The chart's coordinators hand their shard over on a real API server.
mod on_leases;

// Coordinators on a bucket, for the scenarios of clusters.
mod on_bucket;

// A coordinator for each shard of a cluster.
mod divided;

// What an operator sees of a cluster.
mod operated;

// Questions over the tables of all shards.
mod tabled;

// A capture runs no code in a training process.
mod disturbance;

// A leaking DDP rank ends in one incident that names the line.
mod end_to_end;
mod epilog;
mod healed;

// NVRx' own client refuses a node whose GPU memory was not given back.
mod nvrx;

// Idle nodes of Ray are drained, and no others.
mod ray;

// A coordinator's folder becomes a cluster in a bucket.
mod moved;

// Remedies inside the ranks of running jobs, and their proofs.
mod remedied;

// Captures finish with stopped, killed and unreachable ranks.
mod partition;

// Faults of real programs are found; benign programs stay without a page.
mod real_programs;

// A coordinator's folder can be checked, and its index made again.
mod stored;

// Certificates and clocks change under a running job.
mod trust;

// Another coordinator on the same bucket takes over.
mod taken_over;
