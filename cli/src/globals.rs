//! Options that all commands have.

use crate::client::Client;

/// Options of all commands.
#[derive(Debug, clap::Args)]
pub(crate) struct Globals {
    /// Where the coordinator answers.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "MEMTAPE_COORDINATOR",
        default_value = "http://127.0.0.1:7771"
    )]
    pub(crate) coordinator: String,

    /// Print one JSON object instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Globals {
    /// A client of the coordinator.
    /// Fails when its URL makes no sense.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Client::new(&self.coordinator)
    }
}
