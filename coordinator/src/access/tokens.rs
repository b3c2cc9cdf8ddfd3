//! Tokens of programs and users: given out once, kept as hashes, listed, revoked.
//!
//! A token is `mtk_ID_SECRET`. The secret has 256 random bits, so a plain hash keeps it. A token
//! that is revoked or has expired stays in the list until the list is full. Written here, read at
//! every request; nothing of the loop is needed. A token is stored even if its requester has
//! disconnected.
//!
//! In a cluster of several shards the coordinator of the first keeps the tokens. Each other one
//! asks it about a token, with that token ([`Tokens::learn`]), and keeps valid and refused ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use memtape_core::access::{Caller, Grant};
use memtape_core::limits::TOKENS_MAX;
#[cfg(feature = "cluster")]
use memtape_core::limits::TOKENS_REFUSED_MAX;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::oneshot;

use crate::access::audit::Audit;
use memtape_disk::clock;
use memtape_store::records::{AuditRecord, TokenRecord};
use memtape_store::{Changes, Error, Kind};

/// Prefix of every token, so that a token is recognized where it is found.
const PREFIX: &str = "mtk_";

/// Random bytes of an id and of a secret.
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;

/// Time until the other coordinator is asked about a valid token again.
#[cfg(feature = "cluster")]
pub(crate) const FRESH_NS: u64 = 10_000_000_000;
/// Time until the other coordinator is asked about a refused token again.
#[cfg(feature = "cluster")]
const REFUSED_LASTS_NS: u64 = 60_000_000_000;
/// Time for which a token stays valid while the other coordinator gives no answer.
const LEARNED_LASTS_NS: u64 = 900_000_000_000;

/// Why a token was not made or revoked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("there are {TOKENS_MAX} tokens that are valid: revoke one first")]
    TooMany,
    #[error("there is no token {0:?}")]
    Unknown(String),
    #[error("the system gives no random numbers")]
    NoRandom,
    #[error("the token is not made, because it cannot be stored: {0}")]
    NotMade(Error),
    #[error("the token is revoked, and that is not stored yet, so a restart forgets it: {0}")]
    Revoked(Error),
}

/// All tokens.
#[derive(Clone, Debug)]
pub(crate) struct Tokens {
    /// What changes is stored with its entry.
    audit: Audit,
    all: Arc<Mutex<BTreeMap<String, TokenRecord>>>,
    learned: Arc<Mutex<Learned>>,
}

/// What another coordinator answered about tokens, with the monotonic time of each answer.
#[derive(Debug, Default)]
struct Learned {
    /// Valid ones, by their ids.
    valid: BTreeMap<String, (u64, TokenRecord)>,
    /// Refused ones, by their hashes.
    #[cfg(feature = "cluster")]
    refused: BTreeMap<[u8; 32], u64>,
}

/// How a coordinator that does not keep a token knows it.
#[cfg(feature = "cluster")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Knows {
    /// It keeps the token itself, has asked about it lately, or the text is no token of ours.
    Enough,
    /// It has asked a while ago.
    Once,
    /// It has not asked yet.
    Nothing,
}

impl Tokens {
    /// Takes up the tokens of an earlier process.
    pub(crate) fn new(audit: Audit, records: Vec<TokenRecord>) -> Self {
        let all = records.into_iter().map(|record| (record.id.clone(), record)).collect();
        Self { audit, all: Arc::new(Mutex::new(all)), learned: Arc::default() }
    }

    /// All tokens, by their ids.
    pub(crate) fn list(&self) -> Vec<TokenRecord> {
        self.all().values().cloned().collect()
    }

    /// The holder of a token that is valid now.
    pub(crate) fn holder(&self, token: &str, now_ns: i64) -> Option<Caller> {
        let record = self.kept(token).or_else(|| {
            let (at_ns, record) = self.learned().valid.get(id_of(token)?)?.clone();
            let age_ns = clock::now().mono_ns.saturating_sub(at_ns);
            (age_ns < LEARNED_LASTS_NS && is_of(&record, token)).then_some(record)
        })?;
        is_valid(&record, now_ns).then(|| {
            let grant = Grant { role: record.role, scope: record.scope };
            Caller::holder(format!("token:{}", record.name), grant)
        })
    }

    /// The record of a token that is kept here, valid or not.
    pub(crate) fn kept(&self, token: &str) -> Option<TokenRecord> {
        self.all().get(id_of(token)?).filter(|record| is_of(record, token)).cloned()
    }

    /// What this coordinator, which does not keep it, knows of a token.
    #[cfg(feature = "cluster")]
    pub(crate) fn knows(&self, token: &str, now_ns: u64) -> Knows {
        let Some(id) = id_of(token).filter(|_| self.kept(token).is_none()) else {
            return Knows::Enough;
        };
        let learned = self.learned();
        let refused_ns = learned.refused.get(blake3::hash(token.as_bytes()).as_bytes());
        if refused_ns.is_some_and(|at_ns| now_ns.saturating_sub(*at_ns) < REFUSED_LASTS_NS) {
            return Knows::Enough;
        }
        match learned.valid.get(id).filter(|(_, record)| is_of(record, token)) {
            Some((at_ns, _)) if now_ns.saturating_sub(*at_ns) < FRESH_NS => Knows::Enough,
            Some((at_ns, _)) if now_ns.saturating_sub(*at_ns) < LEARNED_LASTS_NS => Knows::Once,
            _ => Knows::Nothing,
        }
    }

    /// Notes what the coordinator that keeps a token says of it now; none where it is not valid.
    /// Was it valid before, and is no more?
    #[cfg(feature = "cluster")]
    pub(crate) fn learn(&self, token: &str, record: Option<TokenRecord>, now_ns: u64) -> bool {
        let (Some(id), mut learned) = (id_of(token), self.learned()) else { return false };
        let hash = blake3::hash(token.as_bytes());
        let Some(record) = record else {
            learned.refused.insert(*hash.as_bytes(), now_ns);
            keep_newest(&mut learned.refused, TOKENS_REFUSED_MAX, |at_ns| *at_ns);
            // The id may be that of a valid token, with another secret.
            let is_known = learned.valid.get(id).is_some_and(|(_, record)| is_of(record, token));
            return is_known && learned.valid.remove(id).is_some();
        };
        let record = TokenRecord { hash: hash.to_hex().to_string(), ..record };
        learned.valid.insert(id.to_string(), (now_ns, record));
        keep_newest(&mut learned.valid, TOKENS_MAX, |(at_ns, _)| *at_ns);
        false
    }

    /// Does another coordinator keep this token, and did it say that the token is valid?
    #[cfg(feature = "cluster")]
    pub(crate) fn is_learned(&self, token: &str) -> bool {
        id_of(token).is_some_and(|id| self.learned().valid.contains_key(id))
    }

    /// Makes a token of this name, grant and time; the token itself, which is kept nowhere, and its
    /// record.
    pub(crate) async fn create(
        &self,
        wanted: TokenRecord,
        entry: AuditRecord,
    ) -> Result<(String, TokenRecord), TokenError> {
        let mut random = [0; ID_BYTES + SECRET_BYTES];
        SystemRandom::new().fill(&mut random).map_err(|_| TokenError::NoRandom)?;
        let (id, secret) = random.split_at(ID_BYTES);
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let token = format!("{PREFIX}{id}_{}", URL_SAFE_NO_PAD.encode(secret));
        let hash = blake3::hash(token.as_bytes()).to_hex().to_string();
        let record = TokenRecord { id: id.clone(), hash, ..wanted };
        let mut changes = Changes::of(&record);
        let written = {
            let mut all = self.all();
            if all.len() >= TOKENS_MAX {
                let is_over = |known: &&TokenRecord| !is_valid(known, record.created_wall_ns);
                let over = all.values().find(is_over).cloned().ok_or(TokenError::TooMany)?;
                changes.delete(&over);
                all.remove(&over.id);
            }
            // Its place is taken before it is written: others may come meanwhile. The token is
            // handed out after that.
            all.insert(id.clone(), record);
            let (this, id) = (self.clone(), id.clone());
            self.write(entry, changes, move || drop(this.all().remove(&id)))
        };
        written.await.map_err(TokenError::NotMade)?;
        // It may have been revoked meanwhile.
        let record = self.all().get(&id).cloned();
        Ok((token, record.ok_or(TokenError::Unknown(id))?))
    }

    /// Revokes a token. It is refused from now on, even if the revocation cannot be stored; that
    /// is tried again then.
    pub(crate) async fn revoke(
        &self,
        id: &str,
        now_ns: i64,
        entry: AuditRecord,
    ) -> Result<TokenRecord, TokenError> {
        let (record, written) = {
            let mut all = self.all();
            let known = all.get_mut(id).ok_or_else(|| TokenError::Unknown(id.to_string()))?;
            known.revoked_wall_ns.get_or_insert(now_ns);
            let (record, audit, later) = (known.clone(), self.audit.clone(), entry.clone());
            let again = Changes::of(&record);
            let failed = move || {
                let store = audit.store.clone();
                store.write(again, Box::new(move |_| drop(audit.note(later))));
            };
            let written = self.write(entry, Changes::of(&record), failed);
            (record, written)
        };
        written.await.map_err(TokenError::Revoked)?;
        Ok(record)
    }

    /// Hands changes over before it returns: called while all tokens are held, so that changes are
    /// stored in their order. `failed` is called where they cannot be stored, also where the
    /// requester has disconnected.
    fn write<F: FnOnce() + Send + 'static>(
        &self,
        entry: AuditRecord,
        changes: Changes,
        failed: F,
    ) -> impl Future<Output = memtape_store::Result<()>> + use<F> {
        let (reply, written) = oneshot::channel();
        let done = move |result: memtape_store::Result<()>| {
            if result.is_err() {
                failed();
            }
            drop(reply.send(result));
        };
        self.audit.note_with(entry, changes, Box::new(done));
        let stopping = || Error::new(Kind::Io, "the coordinator is stopping");
        async move { written.await.unwrap_or_else(|_| Err(stopping())) }
    }

    fn learned(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, TokenRecord>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the oldest answer beyond `max`.
#[cfg(feature = "cluster")]
fn keep_newest<K: Clone + Ord, V>(answers: &mut BTreeMap<K, V>, max: usize, at: fn(&V) -> u64) {
    if answers.len() > max {
        let oldest = answers.iter().min_by_key(|(_, answer)| at(answer));
        let oldest = oldest.map(|(key, _)| key.clone());
        oldest.map(|key| answers.remove(&key));
    }
}

/// The id in a token; none in a text that is no token of ours.
fn id_of(token: &str) -> Option<&str> {
    Some(token.strip_prefix(PREFIX)?.split_once('_')?.0)
}

/// Is it the record of this very token? Compared in constant time.
fn is_of(record: &TokenRecord, token: &str) -> bool {
    let hash = blake3::Hash::from_hex(&record.hash);
    hash.is_ok_and(|hash| hash == blake3::hash(token.as_bytes()))
}

/// Is a token neither revoked nor expired?
pub(crate) fn is_valid(record: &TokenRecord, now_ns: i64) -> bool {
    record.revoked_wall_ns.is_none() && now_ns < record.expires_wall_ns
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use tokio::task::yield_now;

    use super::*;
    use memtape_simulated_disk::SimulatedDisk;
    use memtape_store::Store;

    fn wanted() -> TokenRecord {
        let (name, expires_wall_ns) = ("grafana".to_string(), 100);
        TokenRecord { name, created_wall_ns: 1, expires_wall_ns, ..TokenRecord::default() }
    }

    fn entry() -> AuditRecord {
        AuditRecord::default()
    }

    fn tokens(disk: &SimulatedDisk) -> Tokens {
        let store = Store::open_in_turns(&disk.process()).unwrap().0;
        Tokens::new(Audit::new(store, Arc::default(), Vec::new()), Vec::new())
    }

    /// Carries out `work` while the store takes its turns.
    async fn with_turns<T>(tokens: &Tokens, work: impl Future<Output = T>) -> T {
        let writing = async {
            loop {
                tokens.audit.store.turn();
                yield_now().await;
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            () = writing => unreachable!("it never ends"),
        }
    }

    #[tokio::test]
    async fn a_token_that_is_revoked_while_it_is_stored_stays_revoked() {
        let disk = SimulatedDisk::new(1);
        let tokens = tokens(&disk);
        let mut creating = Box::pin(tokens.create(wanted(), entry()));
        let is_waiting =
            poll_fn(|context| Poll::Ready(creating.as_mut().poll(context).is_pending())).await;
        assert!(is_waiting);
        let id = tokens.list()[0].id.clone();
        let both = async { tokio::join!(creating, tokens.revoke(&id, 5, entry())) };
        let (created, revoked) = with_turns(&tokens, both).await;
        let (token, record) = created.unwrap();
        assert_eq!(revoked.unwrap().revoked_wall_ns, Some(5));
        assert_eq!(record.revoked_wall_ns, Some(5));
        assert_eq!(tokens.list()[0].revoked_wall_ns, Some(5));
        assert_eq!(tokens.holder(&token, 6), None);
        // So it does after a restart.
        drop(tokens);
        let loaded = Store::open_in_turns(&disk.process()).unwrap().1;
        assert_eq!(loaded.tokens[0].revoked_wall_ns, Some(5));
    }

    #[test]
    fn what_is_learned_of_a_token_counts_for_a_while_and_for_no_other() {
        let tokens = tokens(&SimulatedDisk::new(1));
        let (token, other) = ("mtk_0a_secret", "mtk_0a_other");
        assert_eq!(
            (tokens.knows(token, 0), tokens.knows("eyJ", 0)),
            (Knows::Nothing, Knows::Enough)
        );
        assert!(!tokens.learn(token, Some(wanted()), 7));
        assert_eq!(tokens.knows(token, 7 + FRESH_NS - 1), Knows::Enough);
        assert_eq!(tokens.knows(token, 7 + FRESH_NS), Knows::Once);
        assert_eq!(tokens.knows(token, 7 + LEARNED_LASTS_NS), Knows::Nothing);
        // The same id with another secret takes nothing from it.
        assert_eq!(tokens.knows(other, 7), Knows::Nothing);
        assert!(!tokens.learn(other, None, 8) && tokens.is_learned(token));
        assert_eq!(tokens.knows(token, 8), Knows::Enough);
        assert!(tokens.learn(token, None, 8) && tokens.holder(token, 0).is_none());
        // What was refused is not asked about again for a while, also from another caller.
        for refused in [token, other] {
            assert_eq!(tokens.knows(refused, 8 + REFUSED_LASTS_NS - 1), Knows::Enough);
            assert_eq!(tokens.knows(refused, 8 + REFUSED_LASTS_NS), Knows::Nothing);
        }
        for number in 0..TOKENS_REFUSED_MAX {
            tokens.learn(&format!("mtk_r{number}_x"), None, 9 + number as u64);
        }
        let knows = [token, "mtk_r1_x"].map(|token| tokens.knows(token, 9));
        assert_eq!(knows, [Knows::Nothing, Knows::Enough], "the oldest makes room");
        // The one that was asked about longest ago makes room.
        for number in 0..=TOKENS_MAX {
            tokens.learn(&format!("mtk_{number}_x"), Some(wanted()), 9 + number as u64);
        }
        let knows = [0, 1].map(|number| tokens.knows(&format!("mtk_{number}_x"), 9));
        assert_eq!(knows, [Knows::Nothing, Knows::Enough]);
    }

    #[tokio::test]
    async fn a_disconnected_caller_leaves_no_half_stored_token() {
        let disk = SimulatedDisk::new(1);
        let tokens = tokens(&disk);
        {
            let mut creating = pin!(tokens.create(wanted(), entry()));
            poll_fn(|context| Poll::Ready(creating.as_mut().poll(context).is_pending())).await;
        }
        while tokens.audit.store.turn() {}
        assert_eq!(tokens.list().len(), 1);
        // Where it cannot be stored it goes, also where no request waits for it.
        disk.fail_writes(1 << 20);
        {
            let mut creating = pin!(tokens.create(wanted(), entry()));
            poll_fn(|context| Poll::Ready(creating.as_mut().poll(context).is_pending())).await;
        }
        assert_eq!(tokens.list().len(), 2);
        while tokens.audit.store.turn() {}
        assert_eq!(tokens.list().len(), 1);
        let failed = with_turns(&tokens, tokens.create(wanted(), entry())).await;
        assert!(matches!(failed, Err(TokenError::NotMade(_))), "{failed:?}");
        assert_eq!(tokens.list().len(), 1);
        // A revocation counts, and is stored later.
        let id = tokens.list()[0].id.clone();
        let revoked =
            with_turns(&tokens, tokens.revoke(&id, 5, entry())).await.unwrap_err().to_string();
        assert!(revoked.starts_with("the token is revoked, and that is not stored yet"));
        disk.fail_writes(0);
        while tokens.audit.store.turn() {}
        drop(tokens);
        let loaded = Store::open_in_turns(&disk.process()).unwrap().1;
        assert_eq!(loaded.tokens[0].revoked_wall_ns, Some(5));
        // One entry of the token that was made, one of its revocation, none of the others.
        assert_eq!(loaded.audit.iter().map(|of| of.number).collect::<Vec<_>>(), [1, 2]);
    }
}
