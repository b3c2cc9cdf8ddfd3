//! `memtape token`: tokens of programs and users, made, listed and revoked.

use memtape_proto::api::{CreatedToken, Named, Token, TokenRequest, Tokens};

use crate::clock;
use crate::globals::Globals;
use crate::render::answers;

/// `memtape token`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and print it; the coordinator keeps a hash of it alone.
    Create(CreateArgs),
    /// List the tokens.
    List,
    /// Revoke a token; from then on it is refused.
    Revoke(RevokeArgs),
}

/// `memtape token create`.
#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// Whom it is for, such as grafana.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// What it may do: viewer (see jobs), operator (ask for captures, too), admin (see every job,
    /// give tokens out, and read the audit).
    #[arg(long, value_name = "ROLE", value_parser = ["viewer", "operator", "admin"])]
    pub(crate) role: String,
    /// User ids whose jobs it reaches [default: all jobs].
    #[arg(long = "uid", value_name = "UIDS", value_delimiter = ',')]
    pub(crate) uids: Vec<u32>,
    /// Kubernetes namespaces whose jobs it reaches [default: all jobs].
    #[arg(long = "namespace", value_name = "NAMES", value_delimiter = ',')]
    pub(crate) namespaces: Vec<String>,
    /// Days that it is valid.
    #[arg(long, value_name = "DAYS", default_value_t = 90)]
    pub(crate) days: u64,
}

/// `memtape token revoke`.
#[derive(Debug, clap::Args)]
pub(crate) struct RevokeArgs {
    /// Its id, as `memtape token list` shows it.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

/// Makes, lists or revokes tokens.
/// Fails when the coordinator does not answer or refuses.
pub(crate) fn run(command: &TokenCommand, globals: &Globals) -> anyhow::Result<()> {
    let client = globals.client()?;
    match command {
        TokenCommand::Create(args) => {
            let answer = client.post(&["tokens"], &request(args))?;
            globals.print(&answer, |created: CreatedToken| {
                eprintln!("memtape: token {} of {}, shown this once:", created.id, args.name);
                created.token
            })
        }
        TokenCommand::List => {
            let text = |of: Tokens| answers::tokens(&of.tokens, clock::wall_ns());
            globals.print(&client.get(&["tokens"], &[])?, text)
        }
        TokenCommand::Revoke(args) => {
            let answer = client.post(&["tokens", &args.id, "revoke"], &())?;
            globals
                .print(&answer, |Token { id, name, .. }| format!("token {id} of {name} is revoked"))
        }
    }
}

fn request(args: &CreateArgs) -> TokenRequest {
    TokenRequest {
        name: args.name.clone(),
        role: Named::of(&args.role),
        uids: args.uids.clone(),
        namespaces: args.namespaces.clone(),
        days: args.days,
    }
}
