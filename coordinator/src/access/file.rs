//! The file of roles: who gets which role over whose jobs.
//!
//! It is TOML, and every field is known or the file is refused: a misspelt `uids` would otherwise
//! open all jobs. A file that all users can write is refused. Nothing is decided here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use memtape_core::access::{Grant, NODE, Role, Rule, Rules, Scope};
use memtape_tls::folder::{Contents, TlsError, file};
use serde::Deserialize;

/// The bit of a mode with which all users can write a file.
const WRITTEN_BY_OTHERS: u32 = 0o002;

/// Why a file of roles cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("the file of roles cannot be used: {0}")]
    Unread(#[from] TlsError),
    #[error("the file of roles {path} is wrong: {why}")]
    Wrong { path: PathBuf, why: String },
}

/// Content of the file of roles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    /// The rules; none where every caller may do everything.
    pub(crate) rules: Option<Rules>,
    /// Work that cannot be written into the audit is refused.
    pub(crate) is_audit_required: bool,
    /// Provider whose tokens name users, beside the coordinator's own tokens.
    pub(crate) provider: Option<Provider>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    oidc: Option<Provider>,
    #[serde(default)]
    audit: Audit,
    #[serde(default)]
    deny: BTreeSet<String>,
    #[serde(default)]
    grant: Vec<Granted>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Audit {
    #[default]
    BestEffort,
    Required,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Granted {
    role: Role,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    groups: Vec<String>,
    /// All jobs where neither these nor namespaces are given.
    uids: Option<BTreeSet<u32>>,
    namespaces: Option<BTreeSet<String>>,
}

/// Settings of a provider in the file of roles.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Provider {
    pub(crate) issuer: String,
    pub(crate) audience: String,
    pub(crate) keys_file: Option<PathBuf>,
    pub(crate) keys_url: Option<String>,
    #[serde(default = "subject")]
    pub(crate) name_claim: String,
    #[serde(default = "groups")]
    pub(crate) groups_claim: String,
}

pub(super) fn subject() -> String {
    "sub".to_string()
}

pub(super) fn groups() -> String {
    "groups".to_string()
}

impl Provider {
    /// The mistake in these settings; none where they are valid.
    pub(crate) fn mistake(&self) -> Option<&'static str> {
        if !cfg!(feature = "oidc") {
            return Some(not_built!("OpenID"));
        }
        let url = self.keys_url.as_deref();
        match (&self.keys_file, url) {
            _ if self.issuer.is_empty() || self.audience.is_empty() => {
                Some("oidc needs an issuer and an audience")
            }
            (Some(_), None) => None,
            (None, Some(url)) if url.starts_with("https://") => None,
            (None, Some(_)) => Some("keys_url of oidc must begin with https://"),
            _ => Some("oidc needs either keys_file or keys_url"),
        }
    }
}

impl Contents for Policy {
    const WHAT: &'static str = "roles";
    type Error = FileError;

    fn read(path: &Path) -> Result<(blake3::Hash, Self), FileError> {
        let bytes = file(path, WRITTEN_BY_OTHERS)?;
        let text = str::from_utf8(&bytes).map_err(|_| "it is no UTF-8".to_string());
        let policy = text.and_then(Self::parse);
        let wrong = |why| FileError::Wrong { path: path.to_path_buf(), why };
        Ok((blake3::hash(&bytes), policy.map_err(wrong)?))
    }
}

impl Policy {
    /// Parses the text of a file of roles.
    ///
    /// # Errors
    /// One line about what is wrong.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            format!("line {line}: {}", error.message().lines().next().unwrap_or_default())
        })?;
        if let Some(mistake) = file.oidc.as_ref().and_then(Provider::mistake) {
            return Err(mistake.to_string());
        }
        let rules: Result<Vec<Rule>, String> = file.grant.into_iter().map(rule).collect();
        Ok(Self {
            rules: Some(Rules { rules: rules?, denied: file.deny }),
            is_audit_required: file.audit == Audit::Required,
            provider: file.oidc,
        })
    }
}

fn rule(granted: Granted) -> Result<Rule, String> {
    let Granted { role, names, groups, uids, namespaces } = granted;
    let of = role.as_str();
    if names.is_empty() && groups.is_empty() {
        return Err(format!("a grant of {of} has neither names nor groups"));
    }
    if names.iter().chain(&groups).any(|name| name.trim().is_empty()) {
        return Err(format!("a grant of {of} has an empty name"));
    }
    // An empty list, as a template makes it, would open all jobs.
    let is_empty = uids.as_ref().is_some_and(BTreeSet::is_empty);
    if is_empty || namespaces.as_ref().is_some_and(BTreeSet::is_empty) {
        return Err(format!("a grant of {of} has an empty list: leave it out to reach every job"));
    }
    let scope =
        Scope { uids: uids.unwrap_or_default(), namespaces: namespaces.unwrap_or_default() };
    if role == Role::Agent {
        if !names.iter().all(|name| name.contains(NODE)) {
            return Err(format!("the names of agents must hold {NODE}, which is their node's"));
        }
        if !groups.is_empty() || !scope.is_all() {
            return Err("a grant of agent has no groups, uids or namespaces".to_string());
        }
    }
    if role == Role::Admin && !scope.is_all() {
        return Err("a grant of admin has no uids or namespaces: it reaches every job".to_string());
    }
    Ok(Rule { names, groups, grant: Grant { role, scope } })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_grants_roles_to_names() {
        let policy = Policy::parse(
            "audit = \"required\"\ndeny = [\"mallory\"]\n\
             [[grant]]\nrole = \"agent\"\nnames = [\"spiffe://memtape/agent/{node}\"]\n\
             [[grant]]\nrole = \"viewer\"\nnames = [\"alice\"]\ngroups = [\"a\"]\nuids = [1000]\n",
        )
        .unwrap();
        assert!(policy.is_audit_required);
        let rules = policy.rules.unwrap();
        assert!(rules.is_agent(&["spiffe://memtape/agent/n1".to_string()], "n1"));
        assert!(rules.caller(&["alice".to_string()], &[]).is_known());
        assert!(!rules.caller(&["mallory".to_string()], &["a".to_string()]).is_known());
    }

    #[test]
    fn the_documented_file_is_understood() {
        let page = include_str!("../../../docs/security.md");
        let (_, block) = page.split_once("```toml\n").unwrap();
        let (text, _) = block.split_once("```").unwrap();
        let rules = Policy::parse(text).unwrap().rules.unwrap();
        assert!(rules.is_agent(&["spiffe://memtape/agent/n1".to_string()], "n1"));
        assert!(!rules.is_agent(&["spiffe://memtape/agent/node-7".to_string()], "node-7"));
    }

    #[test]
    fn a_file_with_a_mistake_grants_nothing() {
        let check = |text: &str, expected: &str| {
            let why = Policy::parse(text).unwrap_err();
            assert!(why.contains(expected) && !why.contains('\n'), "{text:?}: {why}");
        };
        let viewer = "[[grant]]\nrole = \"viewer\"\n";
        check(&format!("{viewer}names = [\"a\"]\nuid = [1]\n"), "line 4");
        check(viewer, "neither names nor groups");
        check(&format!("{viewer}names = [\" \"]\n"), "empty name");
        for empty in ["uids = []\n", "namespaces = []\n", "uids = [1]\nnamespaces = []\n"] {
            check(&format!("{viewer}names = [\"a\"]\n{empty}"), "empty list");
        }
        check("[[grant]]\nrole = \"owner\"\nnames = [\"a\"]\n", "line 2");
        check("[[grant]]\nrole = \"agent\"\nnames = [\"a\"]\n", "{node}");
        check("[[grant]]\nrole = \"agent\"\nnames = [\"{node}\"]\nuids = [1]\n", "no groups");
        check("[[grant]]\nrole = \"admin\"\nnames = [\"a\"]\nuids = [1]\n", "every job");
        check("audit = \"maybe\"\n", "line 1");
        let oidc = "[oidc]\nissuer = \"i\"\naudience = \"a\"\n";
        check(oidc, "keys_file");
        check(&format!("{oidc}keys_url = \"http://x\"\n"), "https://");
        check(&format!("{oidc}key_file = \"x\"\n"), "line 4");
        check("[[grants]]\n", "line 1");
        check("= =", "line 1");
    }

    #[test]
    fn a_file_that_all_users_can_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.toml");
        std::fs::write(&path, "[[grant]]\nrole = \"viewer\"\nnames = [\"a\"]\n").unwrap();
        for (mode, is_refused) in [(0o600, false), (0o644, false), (0o664, false), (0o646, true)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let read = Policy::read(&path);
            assert_eq!(matches!(read, Err(FileError::Unread(_))), is_refused, "{mode:o}: {read:?}");
        }
        let why = Policy::read(&path).unwrap_err().to_string();
        assert!(why.contains("chmod go-w"), "{why}");
    }

    #[test]
    fn a_large_file_is_read_to_its_limit() {
        // A terabyte of zeros, which takes no room on the disk.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.toml");
        let file = std::fs::File::create(&path).unwrap();
        file.set_permissions(std::fs::Permissions::from_mode(0o644)).unwrap();
        file.set_len(1 << 40).unwrap();
        let why = Policy::read(&path).unwrap_err().to_string();
        assert!(why.contains("larger than 4 MiB"), "{why}");
    }
}
