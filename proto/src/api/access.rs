//! Who asks, the tokens of programs and users, and the audit.

pub use memtape_core::access::Role;
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use super::name::Named;

/// Who the caller is, and what they may do.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct WhoAmI {
    /// The first name that was proven; `anyone` where the coordinator has no file of roles.
    pub name: String,
    /// Whether all jobs are seen, or only those of some owners.
    pub sees_all_jobs: bool,
    /// Whether tokens can be made and the audit read.
    pub administers: bool,
    /// Whether a cookie of this browser holds the token.
    pub signed_in: bool,
}

/// Signs a page in.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SignIn {
    /// A token.
    pub token: String,
}

/// Asks for a token.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenRequest {
    /// Whom it is for, such as `grafana`.
    pub name: String,
    /// What it may do.
    pub role: Named<Role>,
    /// User ids whose jobs it reaches; all jobs where there are neither these nor namespaces.
    #[serde(default)]
    pub uids: Vec<u32>,
    /// Kubernetes namespaces whose jobs it reaches.
    #[serde(default)]
    pub namespaces: Vec<String>,
    /// How many days it is valid.
    pub days: u64,
}

/// A token that was made.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CreatedToken {
    /// Its id, by which it is revoked.
    pub id: String,
    /// The token; it is shown this once, and kept nowhere.
    pub token: String,
}

/// A token, without the token itself.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Token {
    /// Its id, by which it is revoked.
    pub id: String,
    /// Whom it is for.
    pub name: String,
    /// What it may do.
    pub role: Named<Role>,
    /// User ids whose jobs it reaches.
    pub uids: Vec<u32>,
    /// Kubernetes namespaces whose jobs it reaches.
    pub namespaces: Vec<String>,
    /// Whether it is neither revoked nor expired.
    pub valid: bool,
    /// Who made it.
    pub created_by: String,
    /// When, in nanoseconds of Unix time.
    pub created_wall_ns: i64,
    /// When it expires, in nanoseconds of Unix time.
    pub expires_wall_ns: i64,
    /// When it was revoked, in nanoseconds of Unix time.
    pub revoked_wall_ns: Option<i64>,
}

/// Tokens.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Tokens {
    /// By their ids.
    pub tokens: Vec<Token>,
}

/// What made an entry of the audit. Each has entries of its own number and its own chain, or a
/// chain for each name: what agents cause pushes out nothing that users did.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    Deserialize,
    Eq,
    Ord,
    PartialEq,
    PartialOrd,
    Serialize,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Cause {
    /// A user, a file of settings, or a restart, which has a budget.
    #[default]
    User,
    /// What an agent reported or announced, and decisions to do nothing because of it.
    Agent,
    /// A user who read something.
    Read,
    /// A client who was refused, with a proven name.
    Refusal,
    /// A client who was refused, without one.
    Unproven,
}

/// One entry of the audit, as it is stored: who did what, when, and from where.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct AuditEntry {
    /// What made the entry.
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "memtape_core::tape::schema::words::<Cause>")
    )]
    pub cause: Cause,
    /// Numbers grow. A hole is an entry that could not be written, or an older one of another
    /// cause that was deleted.
    pub number: u64,
    /// When, in nanoseconds of Unix time.
    pub wall_ns: i64,
    /// Name of the caller, `coordinator`, or `agent of` a node.
    pub who: String,
    /// Address of the client; empty where the coordinator itself acted.
    pub from: String,
    /// Number of the request, as `x-request-id` of its answer.
    pub request: u64,
    /// What was done.
    pub action: String,
    /// To what.
    pub subject: String,
    /// BLAKE3 of the entry before this one with the same cause, in hexadecimal.
    pub before: String,
}

/// Entries of the audit.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Audit {
    /// At most 1,000, oldest first.
    pub entries: Vec<AuditEntry>,
    /// Number of the first entry that does not fit the one before it: one was changed, or is
    /// missing.
    pub broken_at: Option<u64>,
}
