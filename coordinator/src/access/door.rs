//! Authentication of a caller by the certificate of the connection or the token of the request.
//!
//! Certificates and the file of roles are read again when they change; open connections are then
//! authenticated again. A refusal names the missing role and no job.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use memtape_core::access::{Caller, Rules};
use memtape_core::limits::{
    AUDITED_AT_ONCE_MAX, AUDITED_PER_MINUTE_MAX, REFUSALS_LOGGED_AT_ONCE_MAX,
    REFUSALS_LOGGED_PER_MINUTE_MAX, REFUSALS_LOGGED_PER_MINUTE_OF_ALL_MAX, REQUESTS_AT_ONCE_MAX,
    REQUESTS_PER_SECOND_MAX, TOKENS_VERIFIED_PER_SECOND_MAX,
};
use memtape_tls::folder::Followed;
#[cfg(feature = "oidc")]
use memtape_tls::folder::POLL_EVERY;
use memtape_tls::server::ServerTls;
use memtape_tls::steady;
use tokio::sync::watch;

use crate::access::audit::{self, Audit, NotWritten};
use crate::access::file::{FileError, Policy};
#[cfg(feature = "oidc")]
use crate::access::oidc::Keys;
use crate::access::peer::Peer;
use crate::access::tokens::Tokens;
use crate::quota::{CallerRates, MINUTE_NS, SECOND_NS};
use crate::state::counters::Loss;
use memtape_disk::clock;
use memtape_store::records::{AuditRecord, Cause};

/// Why a caller is not let in.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum Refused {
    #[error(
        "no credentials were sent: give a client certificate (--tls-dir) or a token \
         (MEMTAPE_TOKEN or --token-file)"
    )]
    Unproven,
    #[error("the token is not valid: it is wrong, has expired or was revoked")]
    BadToken,
    #[error("{} has no role here: an admin gives one in the file of roles", .0.escape_debug())]
    NoRole(String),
    #[error("too many requests: try again later")]
    TooMany(Duration),
}

/// Authenticates and admits callers.
#[derive(Debug)]
pub(crate) struct Door {
    policy: Option<Arc<Followed<Policy>>>,
    changed: watch::Sender<u64>,
    tls: Option<Arc<ServerTls>>,
    requests: CallerRates,
    /// No caller fills the audit and drives out other callers' entries.
    audited: CallerRates,
    /// Refusals in the audit, by proven name.
    refused: CallerRates,
    /// Other refusals, in the audit and in the log: of each network, and of all of them.
    refused_of_network: CallerRates,
    refused_of_all: CallerRates,
    verified: CallerRates,
    verified_of_network: CallerRates,
    #[cfg(feature = "oidc")]
    pub(super) keys: Keys,
    pub(crate) tokens: Tokens,
    pub(crate) audit: Audit,
}

impl Door {
    /// Admits by the roles of this file; without a file every caller may do everything. Blocks.
    ///
    /// # Errors
    /// The file cannot be used.
    pub(crate) fn new(
        file: Option<PathBuf>,
        tls: Option<Arc<ServerTls>>,
        tokens: Tokens,
        audit: Audit,
    ) -> Result<Self, FileError> {
        let of_tokens = |count| CallerRates::new(SECOND_NS / count, count);
        let of_refusals = |count, at_once| CallerRates::new(MINUTE_NS / count, at_once);
        let of_all = REFUSALS_LOGGED_PER_MINUTE_OF_ALL_MAX;
        Ok(Self {
            policy: file.as_deref().map(Followed::open).transpose()?.map(Arc::new),
            changed: watch::channel(0).0,
            tls,
            requests: CallerRates::new(SECOND_NS / REQUESTS_PER_SECOND_MAX, REQUESTS_AT_ONCE_MAX),
            audited: CallerRates::new(MINUTE_NS / AUDITED_PER_MINUTE_MAX, AUDITED_AT_ONCE_MAX),
            refused: of_refusals(REFUSALS_LOGGED_PER_MINUTE_MAX, REFUSALS_LOGGED_AT_ONCE_MAX),
            refused_of_network: of_refusals(
                REFUSALS_LOGGED_PER_MINUTE_MAX,
                REFUSALS_LOGGED_AT_ONCE_MAX,
            ),
            refused_of_all: of_refusals(of_all, of_all),
            verified: of_tokens(TOKENS_VERIFIED_PER_SECOND_MAX),
            verified_of_network: of_tokens(TOKENS_VERIFIED_PER_SECOND_MAX / 10),
            #[cfg(feature = "oidc")]
            keys: Keys::default(),
            tokens,
            audit,
        })
    }

    /// TLS of the port, where it has any.
    pub(crate) fn tls(&self) -> Option<&Arc<ServerTls>> {
        self.tls.as_ref()
    }

    /// Present content of the file of roles.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.policy.as_ref().map(|policy| policy.current()).unwrap_or_default()
    }

    /// The caller of a request with this token.
    ///
    /// # Errors
    /// They have no role, or ask too often.
    pub(crate) fn caller(&self, peer: &Peer, token: Option<&str>) -> Result<Caller, Refused> {
        let (now_ns, network) = (clock::now().mono_ns, peer.network().to_string());
        // A signature is verified, which costs more than all else, unless the token is known.
        let may_verify = || {
            self.verified_of_network.take(now_ns, &network)?;
            self.verified.take(now_ns, "")
        };
        let caller = self.identify(peer, token, may_verify);
        let bucket = self.bucket(peer, caller.as_ref().ok());
        self.requests.take(now_ns, &bucket).map_err(Refused::TooMany)?;
        caller
    }

    /// May this peer make the coordinator find out about one more token?
    ///
    /// # Errors
    /// The peer, or all of them, do too often.
    #[cfg(feature = "cluster")]
    pub(crate) fn admit_unknown_token(&self, peer: &Peer) -> Result<(), Refused> {
        let now_ns = clock::now().mono_ns;
        let taken = self.verified_of_network.take(now_ns, &peer.network().to_string());
        taken.and_then(|()| self.verified.take(now_ns, "")).map_err(Refused::TooMany)
    }

    /// May this caller do one more thing that is audited?
    ///
    /// # Errors
    /// They do too many.
    pub(crate) fn admit_audited(&self, peer: &Peer, caller: &Caller) -> Result<(), Refused> {
        let bucket = self.bucket(peer, Some(caller));
        self.audited.take(clock::now().mono_ns, &bucket).map_err(Refused::TooMany)
    }

    /// Writes the refusal of a request into the audit; `who` is proven. A flood of them makes few
    /// entries, and the others are counted.
    pub(crate) fn note_refusal(
        &self,
        peer: &Peer,
        request: u64,
        who: Option<&str>,
        subject: String,
    ) {
        let now = clock::now();
        let (who, is_written, cause) = match who.or(peer.names().first().map(String::as_str)) {
            Some(who) => (who, self.refused.take(now.mono_ns, who).is_ok(), Cause::Refusal),
            None => ("unknown", self.is_written(now.mono_ns, peer, "audit"), Cause::Unproven),
        };
        if !is_written {
            self.audit.counters.lose(Loss::RefusalNotAudited, 1);
            return;
        }
        let (who, from) = (who.to_string(), peer.address.to_string());
        let own = audit::entry(now, None, "refuse request", subject);
        drop(self.audit.note(AuditRecord { who, from, request, cause, ..own }));
    }

    /// Is a refusal of this peer worth a line in the log? All of them are counted.
    pub(crate) fn is_logged(&self, peer: &Peer) -> bool {
        self.is_written(clock::now().mono_ns, peer, "log")
    }

    fn is_written(&self, now_ns: u64, peer: &Peer, to: &str) -> bool {
        let of_network = self.refused_of_network.take(now_ns, &format!("{to} {}", peer.network()));
        of_network.and_then(|()| self.refused_of_all.take(now_ns, to)).is_ok()
    }

    /// Writes an action that the coordinator is about to take by itself into the audit.
    ///
    /// # Errors
    /// It cannot be written, and the file of roles requires it.
    pub(crate) async fn audit_own(
        &self,
        action: &'static str,
        subject: String,
    ) -> Result<(), NotWritten> {
        let entry = audit::entry(clock::now(), None, action, subject);
        self.audited(self.audit.write(entry).await, true)
    }

    /// Does the work go on, whose entry was written or not? `is_possible` says whether the work can
    /// be done while the store takes no entry.
    ///
    /// # Errors
    /// The entry was not written, and the work is impossible or the file of roles requires entries.
    pub(crate) fn audited(
        &self,
        written: Result<(), NotWritten>,
        is_possible: bool,
    ) -> Result<(), NotWritten> {
        let Err(why) = written else { return Ok(()) };
        if !is_possible || self.policy().is_audit_required {
            return Err(why);
        }
        tracing::error!("an entry of the audit is lost: {why}");
        Ok(())
    }

    /// Name of the caller's bucket: authenticated callers have a bucket of their own.
    pub(crate) fn bucket(&self, peer: &Peer, caller: Option<&Caller>) -> String {
        match caller {
            Some(caller) if self.policy().rules.is_some() => caller.name.clone(),
            _ => peer.network().to_string(),
        }
    }

    fn identify(
        &self,
        peer: &Peer,
        token: Option<&str>,
        may_verify: impl FnOnce() -> Result<(), Duration>,
    ) -> Result<Caller, Refused> {
        let policy = self.policy();
        let Some(rules) = &policy.rules else { return Ok(Caller::anyone()) };
        let caller = match token {
            Some(token) => self.holder(token, &policy, rules, may_verify)?,
            None if peer.names().is_empty() => return Err(Refused::Unproven),
            None => rules.caller(peer.names(), &[]),
        };
        match caller.is_known() {
            true => Ok(caller),
            false => Err(Refused::NoRole(caller.name)),
        }
    }

    /// The holder of a token, ours or a provider's.
    #[cfg(feature = "oidc")]
    fn holder(
        &self,
        token: &str,
        policy: &Policy,
        rules: &Rules,
        may_verify: impl FnOnce() -> Result<(), Duration>,
    ) -> Result<Caller, Refused> {
        if let Some(caller) = self.tokens.holder(token, latest_ns()) {
            return Ok(caller);
        }
        let provider = policy.provider.as_ref().ok_or(Refused::BadToken)?;
        let now_seconds = latest().as_secs();
        let mut user = self.keys.known(provider, token, now_seconds);
        if user.is_none() {
            may_verify().map_err(Refused::TooMany)?;
            user = self.keys.user(provider, token, now_seconds);
        }
        let user = user.ok_or(Refused::BadToken)?;
        Ok(rules.caller(&[user.name], &user.groups))
    }

    #[cfg(not(feature = "oidc"))]
    fn holder<T>(&self, token: &str, _: &Policy, _: &Rules, _: T) -> Result<Caller, Refused> {
        self.tokens.holder(token, latest_ns()).ok_or(Refused::BadToken)
    }

    /// May the agent of this node use this connection?
    pub(crate) fn is_agent(&self, peer: &Peer, node: &str) -> bool {
        let policy = self.policy();
        policy.rules.as_ref().is_none_or(|rules| rules.is_agent(peer.names(), node))
    }

    /// May the agent of any node use this connection?
    pub(crate) fn may_be_agent(&self, peer: &Peer) -> bool {
        let policy = self.policy();
        policy.rules.as_ref().is_none_or(|rules| rules.may_be_agent(peer.names()))
    }

    /// The name of this peer that is denied, if one is.
    pub(crate) fn denied(&self, peer: &Peer) -> Option<String> {
        self.policy().rules.as_ref()?.denied(peer.names()).cloned()
    }

    /// May the caller with this token, or the peer without a token, still send requests?
    pub(crate) fn still_knows(&self, peer: &Peer, token: Option<&str>) -> bool {
        self.identify(peer, token, || Ok(())).is_ok()
    }

    /// Ends the calls of a token that was revoked, or of what is not trusted any more.
    pub(crate) fn change(&self) {
        self.changed.send_modify(|changed| *changed += 1);
    }

    /// Are the credentials that a connection showed at its beginning still valid?
    pub(crate) fn still_admits(&self, peer: &Peer) -> bool {
        match (&self.tls, peer.chain()) {
            (Some(tls), [_, ..]) => tls.trusts(peer.chain()),
            _ => true,
        }
    }

    /// Changes each time when certificates or roles are replaced, or a token is revoked.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Looks at the file of roles, at the certificates and at the provider's keys again and again;
    /// none of them waits for another.
    pub(crate) async fn follow(self: Arc<Self>) {
        let certificates = async {
            let Some(tls) = &self.tls else { return };
            loop {
                tls.replaced().await;
                self.change();
                self.note("replace certificates", "those in --tls-dir".to_string()).await;
            }
        };
        let roles = async {
            let Some(policy) = &self.policy else { return };
            loop {
                policy.replaced().await;
                self.change();
                self.note_roles("replace roles").await;
            }
        };
        let validity = async {
            let Some(tls) = &self.tls else { return };
            tls.report_invalid().await;
        };
        tokio::join!(certificates, validity, roles, self.follow_keys());
    }

    #[cfg(not(feature = "oidc"))]
    async fn follow_keys(&self) {}

    #[cfg(feature = "oidc")]
    async fn follow_keys(&self) {
        let mut changes = self.changes();
        let mut reported = None;
        loop {
            if let Some(provider) = &self.policy().provider {
                let unread = self.keys.look(provider, clock::now().mono_ns).await.err();
                if let Some(why) = unread.as_ref().filter(|_| unread != reported) {
                    tracing::error!("the OpenID provider's keys cannot be renewed: {why}");
                }
                reported = unread;
            }
            // Sooner where there may be another provider.
            let _ = tokio::time::timeout(POLL_EVERY, changes.changed()).await;
        }
    }

    /// Writes the hash of the present file of roles into the audit. The entry at the start shows
    /// changes made while no coordinator ran.
    pub(crate) async fn note_roles(&self, action: &'static str) {
        let Some(policy) = &self.policy else { return };
        let subject = format!("{}, blake3 {}", policy.path().display(), policy.hash());
        self.note(action, subject).await;
    }

    async fn note(&self, action: &'static str, subject: String) {
        if let Err(error) = self.audit_own(action, subject).await {
            tracing::error!("{error}");
        }
    }
}

/// The present by which tokens expire, as certificates do: time since the Unix epoch.
fn latest() -> Duration {
    steady::latest(Duration::from_nanos(u64::try_from(clock::now().wall_ns).unwrap_or(0)))
}

/// [`latest`] in nanoseconds.
pub(crate) fn latest_ns() -> i64 {
    i64::try_from(latest().as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
