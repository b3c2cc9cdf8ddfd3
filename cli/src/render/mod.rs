//! Output of the commands: text for a terminal, and JSON where the API has no type for it.

pub(crate) mod analysis;
pub(crate) mod answers;
pub(crate) mod cluster;
pub(crate) mod collectives;
pub(crate) mod differences;
pub(crate) mod kept;
pub(crate) mod ledger;
pub(crate) mod lines;
pub(crate) mod palette;
pub(crate) mod rank_state;
pub(crate) mod ranks;
pub(crate) mod sections;
pub(crate) mod table;
pub(crate) mod tape;
pub(crate) mod threads;
pub(crate) mod units;
pub(crate) mod workers;
