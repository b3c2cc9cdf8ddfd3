//! `memtape tls`: a small authority, and folders with certificates for those who need one.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use memtape_tls::authority::{Party, issue, make};
use rustls::pki_types::DnsName;
use serde_json::json;

use crate::args::Mistakes;
use crate::globals::Globals;
use crate::output::shell_word;

/// Names below the folder of `memtape tls`.
const AUTHORITY: &str = "authority";
const ACCESS: &str = "access.toml";

/// Who `memtape tls init` makes the first certificate of a user for.
const FIRST_USER: &str = "admin";

/// The file of roles that `memtape tls init` writes.
const ROLES: &str = r#"# Who may do what. The coordinator reads it again when it changes.
#
# Roles: agent (reports for its own node), viewer (sees jobs with their stacks and command lines),
# operator (asks for captures, too), admin (sees all, gives tokens out, reads the audit).
# names are those in certificates. uids and namespaces say whose jobs; without them, all.

# "required" refuses work that cannot be written into the audit.
audit = "required"

# Names that get nothing, whatever stands below: a stolen certificate, for example.
deny = []

[[grant]]
role = "agent"
names = ["spiffe://memtape/agent/{node}"]

[[grant]]
role = "admin"
names = ["spiffe://memtape/user/admin"]

# [[grant]]
# role = "operator"
# names = ["spiffe://memtape/user/alice"]
# uids = [1000]
"#;

/// `memtape tls`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum TlsCommand {
    /// Make an authority, the coordinator's certificate, an admin's, and a file of roles.
    Init(InitArgs),
    /// Make certificates of agents and users with that authority.
    Issue(IssueArgs),
}

/// `memtape tls init`.
#[derive(Debug, clap::Args)]
pub(crate) struct InitArgs {
    /// New folder for all of it. authority/ca.key in it is the one secret that makes certificates:
    /// keep it off the cluster.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Names and addresses under which agents and users reach the coordinator.
    #[arg(long = "host", value_name = "HOSTS", value_delimiter = ',', required = true)]
    pub(crate) hosts: Vec<String>,
    /// Days that the certificates are valid.
    #[arg(long, value_name = "DAYS", default_value_t = 365,
          value_parser = clap::value_parser!(u64).range(1..=3650))]
    pub(crate) days: u64,
}

/// `memtape tls issue`.
#[derive(Debug, clap::Args)]
pub(crate) struct IssueArgs {
    /// The folder of `memtape tls init`.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Nodes whose agents get a certificate, as the agents call them (--node).
    #[arg(long = "agent", value_name = "NODES", value_delimiter = ',')]
    pub(crate) agents: Vec<String>,
    /// Users and programs that get a certificate.
    #[arg(long = "user", value_name = "NAMES", value_delimiter = ',')]
    pub(crate) users: Vec<String>,
    /// A new certificate of the coordinator, for these names and addresses.
    #[arg(long = "coordinator-host", value_name = "HOSTS", value_delimiter = ',')]
    pub(crate) hosts: Vec<String>,
    /// Write the folders here [default: the folder of `memtape tls init`].
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Days that the certificates are valid.
    #[arg(long, value_name = "DAYS", default_value_t = 365,
          value_parser = clap::value_parser!(u64).range(1..=3650))]
    pub(crate) days: u64,
}

/// Makes certificates.
/// Fails when there are some already, a name makes none, or a file cannot be written.
pub(crate) fn run(command: &TlsCommand, globals: &Globals) -> anyhow::Result<()> {
    match command {
        TlsCommand::Init(args) => init(args, globals),
        TlsCommand::Issue(args) => issue_all(args, globals),
    }
}

fn init(args: &InitArgs, globals: &Globals) -> anyhow::Result<()> {
    let InitArgs { dir, hosts, days } = args;
    let parties = [Party::Coordinator(hosts.clone()), Party::User(FIRST_USER.to_string())];
    check(&parties)?;
    let authority = authority_in(dir)?;
    for party in &parties {
        issue(&authority, &dir.join(party.name()), party, *days)?;
    }
    write_roles(&dir.join(ACCESS))?;
    let folder = shell_word(&dir.display().to_string());
    let host = shell_word(hosts.first().map_or("HOST", String::as_str));
    globals.say(&json!({ "folder": dir, "roles": dir.join(ACCESS) }), || {
        format!(
            "{folder}/authority: keep ca.key off the cluster\n\
             {folder}/coordinator: to the coordinator, with {folder}/access.toml:\n  \
               memtape coordinator --listen ADDRESS --tls-dir {folder}/coordinator --access-file \
               {folder}/access.toml\n\
             {folder}/user-admin: to you:\n  \
               memtape jobs --coordinator {host} --tls-dir {folder}/user-admin\n\
             certificates for agents: memtape tls issue {folder} --agent NODE"
        )
    })
}

/// Makes an authority in a folder. Fails where another user could replace it, and so its key.
fn authority_in(dir: &Path) -> anyhow::Result<PathBuf> {
    let authority = dir.join(AUTHORITY);
    memtape_agent::check_above(&authority.join("ca.key"))?;
    make(&authority)?;
    Ok(authority)
}

fn issue_all(args: &IssueArgs, globals: &Globals) -> anyhow::Result<()> {
    let authority = args.dir.join(AUTHORITY);
    let out = args.out.as_ref().unwrap_or(&args.dir);
    let agents = args.agents.iter().cloned().map(Party::Agent);
    let mut parties: Vec<Party> =
        agents.chain(args.users.iter().cloned().map(Party::User)).collect();
    if !args.hosts.is_empty() {
        parties.push(Party::Coordinator(args.hosts.clone()));
    }
    if parties.is_empty() {
        let line = "name whom the certificates are for: --agent, --user or --coordinator-host";
        return Err(Mistakes::one(line).into());
    }
    check(&parties)?;
    for party in &parties {
        issue(&authority, &out.join(party.name()), party, args.days)?;
    }
    let folders: Vec<PathBuf> = parties.iter().map(|party| out.join(party.name())).collect();
    globals.say(&json!({ "folders": folders }), || {
        folders.iter().map(|folder| format!("{}\n", folder.display())).collect()
    })
}

/// A name becomes part of a path and of a URI, a host a name in a certificate.
fn check(parties: &[Party]) -> Result<(), Mistakes> {
    let is_name = |name: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        !name.is_empty() && !name.starts_with('.') && name.chars().all(is_plain)
    };
    let wrong_name = |name: &String| {
        (!is_name(name)).then(|| format!("{name:?} is no name: use letters, digits and -_.@"))
    };
    let is_host = |host: &str| DnsName::try_from(host).is_ok() || host.parse::<IpAddr>().is_ok();
    let wrong_host = |host: &String| {
        (!is_host(host)).then(|| {
            format!("{host:?} is no host: use a name such as memtape.example, or an address")
        })
    };
    let wrong: Vec<String> = parties
        .iter()
        .flat_map(|party| match party {
            Party::Agent(name) | Party::User(name) => wrong_name(name).into_iter().collect(),
            Party::Coordinator(hosts) => hosts.iter().filter_map(wrong_host).collect::<Vec<_>>(),
        })
        .collect();
    if wrong.is_empty() { Ok(()) } else { Err(Mistakes(wrong)) }
}

fn write_roles(path: &Path) -> anyhow::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
    let written = file.and_then(|mut file| file.write_all(ROLES.as_bytes()));
    written.with_context(|| format!("{} cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(party: Party) -> String {
        check(&[party]).map_or_else(|mistakes| mistakes.to_string(), |()| String::new())
    }

    #[test]
    fn an_invalid_certificate_name_is_refused_before_any_file_is_made() {
        for host in ["memtape.example", "10.0.0.7", "::1", "localhost"] {
            assert_eq!(wrong(Party::Coordinator(vec![host.to_string()])), "");
        }
        for host in ["bad host!", "", "a/b", "-"] {
            let said = wrong(Party::Coordinator(vec!["localhost".to_string(), host.to_string()]));
            assert!(said.contains("is no host") && said.contains(host), "{said}");
        }
        assert!(wrong(Party::User("../root".to_string())).contains("is no name"));
        assert_eq!(wrong(Party::Agent("node-1.example".to_string())), "");
    }

    #[test]
    fn no_authority_is_made_where_others_can_replace_it() {
        let dir = tempfile::tempdir().unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(dir.path(), open).unwrap();
        let said = authority_in(&dir.path().join("pki")).unwrap_err().to_string();
        assert!(said.contains("can be replaced by other users"), "{said}");
        assert!(!dir.path().join("pki").exists());
    }

    #[test]
    fn a_certificate_that_is_there_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path()).unwrap();
        let (folder, party) = (dir.path().join("user-a"), Party::User("a".to_string()));
        issue(dir.path(), &folder, &party, 1).unwrap();
        let before = std::fs::read(folder.join("tls.crt")).unwrap();
        let said = issue(dir.path(), &folder, &party, 1).unwrap_err().to_string();
        assert!(said.contains("is there already"), "{said}");
        assert_eq!(std::fs::read(folder.join("tls.crt")).unwrap(), before);
    }
}
