//! Tokens of programs and users: given out once, kept as hashes, listed, revoked.
//!
//! A token is `mtk_ID_SECRET`. The secret has 256 random bits, so a plain hash keeps it. A token
//! that is revoked or has expired stays in the list until there is no room for it. Written here,
//! read at every request; nothing of the loop is needed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use memtape_core::access::{Caller, Grant};
use memtape_core::limits::TOKENS_MAX;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::oneshot;

use crate::records::TokenRecord;
use crate::store::{Changes, Store};

/// What every token begins with, so that it is known where it is found.
const PREFIX: &str = "mtk_";

/// Random bytes of an id and of a secret.
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;

/// Why a token was not made or revoked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("there are {TOKENS_MAX} tokens that are valid: revoke one first")]
    TooMany,
    #[error("there is no token {0:?}")]
    Unknown(String),
    #[error("the system gives no random numbers")]
    NoRandom,
    #[error("the token cannot be stored now: {0}")]
    Store(String),
}

/// All tokens.
#[derive(Debug)]
pub(crate) struct Tokens {
    store: Store,
    all: Mutex<BTreeMap<String, TokenRecord>>,
}

/// What a token is to be.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) grant: Grant,
    pub(crate) created_by: String,
    pub(crate) now_ns: i64,
    pub(crate) expires_wall_ns: i64,
}

impl Tokens {
    /// Takes up the tokens of an earlier process.
    pub(crate) fn new(store: Store, records: Vec<TokenRecord>) -> Self {
        let all = records.into_iter().map(|record| (record.id.clone(), record)).collect();
        Self { store, all: Mutex::new(all) }
    }

    /// All tokens, by their ids.
    pub(crate) fn list(&self) -> Vec<TokenRecord> {
        self.all().values().cloned().collect()
    }

    /// The holder of a token that is valid now.
    pub(crate) fn holder(&self, token: &str, now_ns: i64) -> Option<Caller> {
        let id = token.strip_prefix(PREFIX)?.split_once('_')?.0;
        let all = self.all();
        let record = all.get(id)?;
        // Compared in constant time.
        let is_same = blake3::Hash::from_hex(&record.hash).ok()? == blake3::hash(token.as_bytes());
        (is_same && is_valid(record, now_ns)).then(|| {
            let grant = Grant { role: record.role, scope: record.scope.clone() };
            Caller::holder(format!("token:{}", record.name), grant)
        })
    }

    /// Makes a token; the token itself, which is kept nowhere, and its record.
    pub(crate) async fn create(&self, wanted: Wanted) -> Result<(String, TokenRecord), TokenError> {
        let mut random = [0; ID_BYTES + SECRET_BYTES];
        SystemRandom::new().fill(&mut random).map_err(|_| TokenError::NoRandom)?;
        let (id, secret) = random.split_at(ID_BYTES);
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let token = format!("{PREFIX}{id}_{}", URL_SAFE_NO_PAD.encode(secret));
        let record = TokenRecord {
            id: id.clone(),
            name: wanted.name,
            role: wanted.grant.role,
            scope: wanted.grant.scope,
            hash: blake3::hash(token.as_bytes()).to_hex().to_string(),
            created_by: wanted.created_by,
            created_wall_ns: wanted.now_ns,
            expires_wall_ns: wanted.expires_wall_ns,
            revoked_wall_ns: None,
        };
        let mut changes = Changes::of(&record);
        {
            let mut all = self.all();
            if all.len() >= TOKENS_MAX {
                let is_over = |known: &&TokenRecord| !is_valid(known, wanted.now_ns);
                let over = all.values().find(is_over).cloned().ok_or(TokenError::TooMany)?;
                changes.delete(&over);
                all.remove(&over.id);
            }
            // Its place is taken before it is written: others may come meanwhile.
            all.insert(id.clone(), TokenRecord { hash: String::new(), ..record.clone() });
        }
        let written = self.write(changes).await;
        if let Err(error) = written {
            self.all().remove(&id);
            return Err(error);
        }
        self.all().insert(id, record.clone());
        Ok((token, record))
    }

    /// Revokes a token; from now on it is not taken, whether that can be stored or not.
    pub(crate) async fn revoke(&self, id: &str, now_ns: i64) -> Result<TokenRecord, TokenError> {
        let record = {
            let mut all = self.all();
            let known = all.get_mut(id).ok_or_else(|| TokenError::Unknown(id.to_string()))?;
            known.revoked_wall_ns.get_or_insert(now_ns);
            known.clone()
        };
        self.write(Changes::of(&record)).await?;
        Ok(record)
    }

    async fn write(&self, changes: Changes) -> Result<(), TokenError> {
        let (reply, written) = oneshot::channel();
        self.store.try_write(changes, Box::new(move |result| drop(reply.send(result))));
        let written = written.await.map_err(|_| TokenError::Store("it is stopping".to_string()))?;
        written.map_err(|error| TokenError::Store(error.to_string()))
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, TokenRecord>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Is a token neither revoked nor expired?
pub(crate) fn is_valid(record: &TokenRecord, now_ns: i64) -> bool {
    record.revoked_wall_ns.is_none() && now_ns < record.expires_wall_ns
}
