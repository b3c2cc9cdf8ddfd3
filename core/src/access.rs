//! Access rights: roles, the jobs they reach, and the rules that grant them.
//!
//! A caller comes with names that were proven elsewhere, by a certificate or a token. Rules give
//! each name roles over the jobs of some owners or of all. An agent is bound to its node by its
//! certificate: a rule defines the name of a node's agent. Without rules every caller may do
//! everything. Nothing here reads a certificate or a clock.

use alloc::collections::BTreeSet;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::identity::owner::{Owner, OwnerKey};

/// Stands for the node in the name of an agent.
pub const NODE: &str = "{node}";

/// Permissions of a caller. Each role includes the roles before it, except [`Role::Agent`].
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
    serde::Deserialize,
    serde::Serialize,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Role {
    /// Reports for one node, and does nothing else.
    Agent,
    /// Sees jobs with their stacks and command lines.
    #[default]
    Viewer,
    /// Asks for captures, too.
    Operator,
    /// Sees every job, gives tokens out and reads the audit.
    Admin,
}

impl Role {
    /// Name of the role.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Owners whose jobs a role reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
pub struct Scope {
    /// User ids; they count where the job has no namespace, as in a pod all are root.
    pub uids: BTreeSet<u32>,
    /// Kubernetes namespaces.
    pub namespaces: BTreeSet<String>,
}

impl Scope {
    /// True if all jobs are reached, also jobs of unknown owners.
    pub fn is_all(&self) -> bool {
        self.uids.is_empty() && self.namespaces.is_empty()
    }

    /// Does the scope reach this owner's jobs?
    pub fn reaches(&self, owner: Option<&Owner>) -> bool {
        let reaches = |owner: &Owner| match owner.key() {
            OwnerKey::User(uid) => self.uids.contains(&uid),
            OwnerKey::Namespace(namespace) => self.namespaces.contains(namespace),
            OwnerKey::Unknown(_) => false,
        };
        self.is_all() || owner.is_some_and(reaches)
    }
}

/// A role over the jobs of some owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The role.
    pub role: Role,
    /// Owners whose jobs the role reaches.
    pub scope: Scope,
}

/// A grant for names and groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Names of callers; in the names of agents `{node}` stands for the node.
    pub names: Vec<String>,
    /// Groups of users, as named in a token.
    pub groups: Vec<String>,
    /// The granted role and scope.
    pub grant: Grant,
}

/// All rules of a coordinator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Rules, each with its grants; a caller has the sum of all grants.
    pub rules: Vec<Rule>,
    /// Names without any grant, against every rule.
    pub denied: BTreeSet<String>,
}

impl Rules {
    /// The caller with these proven names and groups.
    pub fn caller(&self, names: &[String], groups: &[String]) -> Caller {
        let name = names.first().map_or_else(|| "unproven".to_string(), Clone::clone);
        if self.denied(names).is_some() {
            return Caller { name, grants: Vec::new() };
        }
        let is_meant = |rule: &&Rule| {
            rule.grant.role != Role::Agent
                && (rule.names.iter().any(|name| names.contains(name))
                    || rule.groups.iter().any(|group| groups.contains(group)))
        };
        let grants = self.rules.iter().filter(is_meant).map(|rule| rule.grant.clone()).collect();
        Caller { name, grants }
    }

    /// May the holder of these names be the agent of this node?
    pub fn is_agent(&self, names: &[String], node: &str) -> bool {
        self.has_agent(names, |pattern| names.contains(&pattern.replace(NODE, node)))
    }

    /// May the holder of these names be the agent of any node? If not, the holder may not be the
    /// agent of a specific node either.
    pub fn may_be_agent(&self, names: &[String]) -> bool {
        self.has_agent(names, |pattern| {
            let around = pattern.split_once(NODE).zip(pattern.rsplit_once(NODE));
            around.is_some_and(|((front, _), (_, end))| {
                names.iter().any(|name| name.starts_with(front) && name.ends_with(end))
            })
        })
    }

    /// The first of these names that is denied.
    pub fn denied<'a>(&self, names: &'a [String]) -> Option<&'a String> {
        names.iter().find(|name| self.denied.contains(*name))
    }

    fn has_agent(&self, names: &[String], is_meant: impl Fn(&str) -> bool) -> bool {
        let has_name = |rule: &Rule| rule.names.iter().any(|name| is_meant(name));
        self.denied(names).is_none()
            && self.rules.iter().any(|rule| rule.grant.role == Role::Agent && has_name(rule))
    }
}

/// The sender of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The first of their names.
    pub name: String,
    grants: Vec<Grant>,
}

impl Caller {
    /// Everybody, where there are no rules.
    pub fn anyone() -> Self {
        Self::holder("anyone".to_string(), Grant { role: Role::Admin, scope: Scope::default() })
    }

    /// The holder of one grant, such as a token's.
    pub fn holder(name: String, grant: Grant) -> Self {
        Self { name, grants: alloc::vec![grant] }
    }

    /// Does the caller have any grant?
    pub fn is_known(&self) -> bool {
        !self.grants.is_empty()
    }

    /// Does the caller have this or a higher role over the jobs of an owner; without one, over all?
    pub fn has(&self, role: Role, owner: Option<&Owner>) -> bool {
        // An administrator reaches all jobs.
        let reaches = |of: &Grant| of.role == Role::Admin || of.scope.reaches(owner);
        self.grants.iter().any(|grant| grant.role >= role && reaches(grant))
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    fn owner(uid: u32, namespace: &str) -> Owner {
        Owner { uid, namespace: namespace.to_string().into(), ..Owner::default() }
    }

    fn rule(role: Role, names: &[&str], groups: &[&str], scope: Scope) -> Rule {
        let all = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
        Rule { names: all(names), groups: all(groups), grant: Grant { role, scope } }
    }

    fn scope(uids: &[u32], namespaces: &[&str]) -> Scope {
        Scope {
            uids: uids.iter().copied().collect(),
            namespaces: namespaces.iter().map(ToString::to_string).collect(),
        }
    }

    fn rules() -> Rules {
        Rules {
            rules: alloc::vec![
                rule(Role::Agent, &["spiffe://c/agent/{node}", "dns:{node}"], &[], scope(&[], &[])),
                rule(Role::Viewer, &["alice"], &["team-a"], scope(&[1000], &["a"])),
                rule(Role::Operator, &["alice"], &[], scope(&[1000], &[])),
                rule(Role::Admin, &["root"], &[], scope(&[1], &[])),
                rule(Role::Viewer, &["grafana", "mallory"], &[], scope(&[], &[])),
            ],
            denied: ["mallory".to_string(), "spiffe://c/agent/stolen".to_string()].into(),
        }
    }

    fn caller(name: &str, groups: &[&str]) -> Caller {
        let groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
        rules().caller(&[name.to_string()], &groups)
    }

    #[test]
    fn callers_reach_exactly_the_jobs_of_their_rules() {
        let alice = caller("alice", &[]);
        assert!(
            alice.has(Role::Viewer, Some(&owner(1000, "")))
                && alice.has(Role::Operator, Some(&owner(1000, "")))
        );
        assert!(
            alice.has(Role::Viewer, Some(&owner(0, "a")))
                && !alice.has(Role::Operator, Some(&owner(0, "a")))
        );
        for other in [Some(owner(1001, "")), Some(owner(1000, "b")), Some(owner(0, "")), None] {
            assert!(
                !alice.has(Role::Viewer, other.as_ref())
                    && !alice.has(Role::Operator, other.as_ref())
            );
        }
        assert!(!alice.has(Role::Viewer, None) && !alice.has(Role::Admin, None));
        assert!(caller("bob", &["team-a"]).has(Role::Viewer, Some(&owner(0, "a"))));
        assert!(!caller("bob", &["team-b"]).is_known() && !caller("mallory", &[]).is_known());
        assert!(
            caller("grafana", &[]).has(Role::Viewer, None)
                && !caller("grafana", &[]).has(Role::Admin, None)
        );
        assert!(!caller("grafana", &[]).has(Role::Operator, Some(&owner(7, ""))));
        let root = caller("root", &[]);
        assert!(
            root.has(Role::Admin, None)
                && root.has(Role::Viewer, None)
                && root.has(Role::Operator, Some(&owner(9, "z")))
        );
        // An agent is no viewer, and a caller without a name is unknown.
        assert!(!caller("spiffe://c/agent/n1", &[]).is_known());
        assert!(!rules().caller(&[], &[]).is_known());
        assert!(
            Caller::anyone().has(Role::Admin, None) && Caller::anyone().has(Role::Viewer, None)
        );
    }

    #[test]
    fn an_agent_is_bound_to_its_own_node() {
        let is_agent =
            |name: &str, node: &str| rules().is_agent(&["x".to_string(), name.to_string()], node);
        assert!(is_agent("spiffe://c/agent/n1", "n1") && is_agent("dns:n1", "n1"));
        for (name, node) in [
            ("spiffe://c/agent/n1", "n2"),
            ("spiffe://c/agent/stolen", "stolen"),
            ("spiffe://c/agent/{node}", "n1"),
            ("alice", "n1"),
            ("alice", "alice"),
            ("root", "root"),
            ("spiffe://c/agent/n1", "agent/n1"),
            ("", ""),
        ] {
            assert!(!is_agent(name, node), "{name:?} as {node:?}");
        }
        // Who can be the agent of a node is asked no further than who cannot.
        let may_be = |name: &str| rules().may_be_agent(&[name.to_string()]);
        assert!(may_be("spiffe://c/agent/n1") && may_be("dns:n2"));
        for name in ["spiffe://c/agent/stolen", "alice", "root", "spiffe://d/agent/n1", ""] {
            assert!(!may_be(name), "{name:?}");
        }
        assert!(!rules().may_be_agent(&[]));
        // A node that is called as a pattern is no pattern.
        let node = format!("x{NODE}");
        assert!(is_agent(&format!("dns:{node}"), &node) && !is_agent("dns:n1", &node));
    }

    #[test]
    fn roles_have_names() {
        for &role in <Role as strum::VariantArray>::VARIANTS {
            assert_eq!(role.as_str().parse::<Role>(), Ok(role));
        }
    }
}
