//! Options that many commands have; `commands/command_line.rs` says in which they mean something.

use std::path::PathBuf;

use clap::ColorChoice;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::args::Mistakes;
use crate::client::credentials::Credentials;
use crate::client::{self, Client};
use crate::output;

/// Options of many commands.
#[derive(Debug, clap::Args)]
pub(crate) struct Globals {
    /// Address of the coordinator; https:// with --tls-dir, else http://, and port 7771 may be left
    /// out. Of a cluster, the addresses of all coordinators, separated by commas.
    #[arg(
        long,
        global = true,
        value_name = "ADDRESS",
        env = "MEMTAPE_COORDINATOR",
        default_value = "127.0.0.1:7771"
    )]
    pub(crate) coordinator: String,

    /// Folder with ca.crt, the authority of the coordinator's certificate, and with tls.crt and
    /// tls.key, the certificate of this program [default: none].
    #[arg(long, global = true, value_name = "DIR", env = "MEMTAPE_TLS_DIR")]
    pub(crate) tls_dir: Option<PathBuf>,

    /// File with a token for the coordinator; MEMTAPE_TOKEN holds the token itself [default: none].
    #[arg(long, global = true, value_name = "FILE", env = "MEMTAPE_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// Print one JSON object instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Colour the text. auto: on a terminal, and as NO_COLOR and CLICOLOR_FORCE say.
    #[arg(long, global = true, value_name = "WHEN", default_value_t = ColorChoice::Auto)]
    pub(crate) color: ColorChoice,

    /// Exit when this process, the parent, exits. For processes that Memtape starts itself.
    #[arg(long, global = true, hide = true, value_name = "PID")]
    pub(crate) die_with_parent: Option<u32>,
}

impl Globals {
    /// A client of the coordinator; of several, of the first that answers.
    /// Fails when its address makes no sense, or certificates or token cannot be read.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Client::first_that_answers(&self.coordinator_urls()?, &Credentials::read(self)?)
    }

    /// The coordinators' URLs.
    /// Fails when an address makes no sense.
    pub(crate) fn coordinator_urls(&self) -> Result<Vec<String>, Mistakes> {
        let addresses = self.coordinator.split(',');
        addresses.map(|address| client::address(address, self.tls_dir.is_some())).collect()
    }

    /// Prints a value as JSON, or as text.
    /// Fails when stdout cannot be written.
    pub(crate) fn say(
        &self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> anyhow::Result<()> {
        if self.json { output::print_json(value) } else { output::print(&text()) }
    }

    /// An answer of the coordinator as it came, or as text.
    /// Fails when it has another shape than expected.
    pub(crate) fn shown<T: DeserializeOwned>(
        &self,
        answer: &Value,
        text: impl FnOnce(T) -> String,
    ) -> anyhow::Result<String> {
        if self.json { Ok(output::json(answer)?) } else { Ok(text(client::parse(answer)?)) }
    }

    /// Prints what [`Self::shown`] returns.
    /// Fails as that does, or when stdout cannot be written.
    pub(crate) fn print<T: DeserializeOwned>(
        &self,
        answer: &Value,
        text: impl FnOnce(T) -> String,
    ) -> anyhow::Result<()> {
        output::print(&self.shown(answer, text)?)
    }
}
