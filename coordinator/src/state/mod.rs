//! What the coordinator knows: the jobs with their ranks, the captures, the incidents, the
//! restarts that wait, and the readings of the hosts. `restore.rs` makes all of it from the store.

pub(crate) mod agent_captures;
pub(crate) mod captures;
pub(crate) mod circumstances;
pub(crate) mod host_readings;
pub(crate) mod incidents;
pub(crate) mod jobs;
pub(crate) mod losses;
pub(crate) mod messages;
pub(crate) mod restarts;
pub(crate) mod restore;
pub(crate) mod silence;
