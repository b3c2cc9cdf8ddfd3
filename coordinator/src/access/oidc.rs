//! Tokens of an OpenID provider: their user, and the user's groups.
//!
//! The provider's keys come from a file or from its URL; they are read again when they change, and
//! when a token names an unknown key. A token is valid if a key of the provider signed it for this
//! coordinator, within its period of validity. The clock is passed in. Keys are used only for the
//! provider they were read from. Names begin with `oidc:`, so that no user of the provider can take
//! the name in a certificate.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jsonwebtoken::crypto::{CryptoProvider, JwkUtils, JwtVerifier};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, Validation, decode, decode_header};
use memtape_core::limits::NAME_BYTES_MAX;
use memtape_core::sharing::Amounts;
use ring::error::Unspecified;
use ring::signature as ring_signature;
use serde::Deserialize;
use serde_json::{Map, Value};
use signature::Verifier;

use crate::access::file::Provider;

/// Claim of an address that users may choose themselves, and claim that it is verified.
const EMAIL: &str = "email";
const EMAIL_VERIFIED: &str = "email_verified";

/// Prefix of the name of every provider's user.
const PREFIX: &str = "oidc:";

/// Verified tokens that are known; further ones are verified each time.
const TOKENS_KNOWN_MAX: usize = 4096;

/// Longest token.
const TOKEN_BYTES_MAX: usize = 16 << 10;

/// Most bytes of a provider's keys.
const KEYS_BYTES_MAX: usize = 1 << 20;

/// Time between two reads of a provider's keys, and between two where a token names another key.
const FETCH_EVERY_NS: u64 = 300_000_000_000;
const FETCH_AGAIN_NS: u64 = 30_000_000_000;

/// Time for the provider's answer.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Keys of a provider at the last read.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    current: RwLock<Current>,
    /// True if a token named an unknown key.
    is_wanted: AtomicBool,
}

#[derive(Debug, Default)]
struct Current {
    /// Provider of the keys.
    provider: Option<Provider>,
    keys: Arc<Vec<Jwk>>,
    /// Users of tokens that these keys have signed, by the token's hash.
    known: HashMap<blake3::Hash, Known>,
    /// Time of the last request for the keys, successful or not.
    fetched_ns: Option<u64>,
}

/// A verified token.
#[derive(Debug)]
struct Known {
    user: User,
    ends_seconds: u64,
}

/// A user of the provider.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) groups: Vec<String>,
}

/// Claims whose types must be right in every token.
#[derive(Debug, Deserialize)]
struct Claims {
    exp: u64,
    nbf: Option<u64>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl Keys {
    /// The user of a token that counted before and still does, which costs a look into a table.
    pub(super) fn known(&self, provider: &Provider, token: &str, now_seconds: u64) -> Option<User> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let known = current.known.get(&blake3::hash(token.as_bytes()))?;
        let counts =
            current.provider.as_ref() == Some(provider) && now_seconds < known.ends_seconds;
        counts.then(|| known.user.clone())
    }

    /// Remembers a verified token until it ends, if its keys are still in use. Of too many, one of
    /// the user who has most is forgotten: a flood of one user's tokens displaces none of another.
    fn remember(&self, keys: &Arc<Vec<Jwk>>, token: &str, known: Known, now_seconds: u64) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        current.known.retain(|_, of| now_seconds < of.ends_seconds);
        if !Arc::ptr_eq(&current.keys, keys) {
            return;
        }
        current.known.insert(blake3::hash(token.as_bytes()), known);
        if current.known.len() > TOKENS_KNOWN_MAX {
            let of_users: Amounts<&str> =
                current.known.values().map(|of| (of.user.name.as_str(), 1)).collect();
            let most = of_users.most().map(|(user, _)| user);
            let mut all = current.known.iter();
            let one =
                all.find(|(_, of)| Some(of.user.name.as_str()) == most).map(|(hash, _)| *hash);
            one.and_then(|hash| current.known.remove(&hash));
        }
    }

    /// The user of a token that counts now. Verifies its signature.
    pub(crate) fn user(&self, provider: &Provider, token: &str, now_seconds: u64) -> Option<User> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let header = decode_header(token).ok()?;
        // What must be understood and is not (RFC 7515, 4.1.11): no extension is known here.
        if header.crit.is_some() {
            return None;
        }
        let keys = self.of(provider)?;
        let is_meant = |key: &&Jwk| match &header.kid {
            Some(kid) => key.common.key_id.as_ref() == Some(kid),
            None => keys.len() == 1,
        };
        let Some(key) = keys.iter().find(is_meant) else {
            self.is_wanted.store(true, Relaxed);
            return None;
        };
        let of_key = key.common.key_algorithm.map(|algorithm| algorithm.to_string());
        let is_same = of_key.is_none_or(|name| name == format!("{:?}", header.alg));
        let signs = !matches!(key.common.public_key_use, Some(PublicKeyUse::Encryption));
        if !is_same || !signs {
            return None;
        }
        let mut validation = Validation::new(header.alg);
        validation.set_audience(&[&provider.audience]);
        validation.set_issuer(&[&provider.issuer]);
        validation.set_required_spec_claims(&["exp", "aud", "iss"]);
        // By our own clock, below.
        (validation.validate_exp, validation.validate_nbf) = (false, false);
        let key = DecodingKey::from_jwk(key).ok()?;
        install();
        let claims = decode::<Claims>(token, &key, &validation).ok()?.claims;
        if now_seconds >= claims.exp || claims.nbf.is_some_and(|begin| now_seconds < begin) {
            return None;
        }
        // Some providers write it as a text.
        let is_true = |claim: &Value| *claim == true || claim == "true";
        let is_verified = claims.others.get(EMAIL_VERIFIED).is_some_and(is_true);
        if provider.name_claim == EMAIL && !is_verified {
            return None;
        }
        let name = claims.others.get(&provider.name_claim)?.as_str()?;
        let groups = match claims.others.get(&provider.groups_claim) {
            Some(Value::String(group)) => vec![group.clone()],
            Some(Value::Array(groups)) => {
                groups.iter().filter_map(|group| group.as_str().map(str::to_string)).collect()
            }
            _ => Vec::new(),
        };
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return None;
        }
        let user = User { name: format!("{PREFIX}{name}"), groups };
        let known = Known { user: user.clone(), ends_seconds: claims.exp };
        self.remember(&keys, token, known, now_seconds);
        Some(user)
    }

    /// The keys of this provider; none where another provider's keys were read last.
    fn of(&self, provider: &Provider) -> Option<Arc<Vec<Jwk>>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        (current.provider.as_ref() == Some(provider)).then(|| current.keys.clone())
    }

    /// Is a fetch of this provider's keys due? Drops the keys of another provider.
    pub(crate) fn begin(&self, provider: &Provider, now_ns: u64) -> bool {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.provider.as_ref() != Some(provider) {
            *current = Current { provider: Some(provider.clone()), ..Current::default() };
            self.is_wanted.store(false, Relaxed);
        }
        let is_wanted = self.is_wanted.load(Relaxed);
        let every_ns = if is_wanted { FETCH_AGAIN_NS } else { FETCH_EVERY_NS };
        let is_due = current.fetched_ns.is_none_or(|at| now_ns.saturating_sub(at) >= every_ns);
        if is_due {
            current.fetched_ns = Some(now_ns);
        }
        is_due
    }

    /// Reads the keys again when the interval has passed; at once for another provider.
    ///
    /// # Errors
    /// They cannot be had; those of the same provider from before stay in use.
    pub(super) async fn look(&self, provider: &Provider, now_ns: u64) -> Result<(), String> {
        let is_due = self.begin(provider, now_ns);
        let text = match (&provider.keys_file, &provider.keys_url) {
            (Some(path), _) => {
                let read = tokio::fs::read(path).await;
                read.map_err(|error| format!("{} cannot be read: {error}", path.display()))?
            }
            (None, Some(url)) if is_due => {
                fetch(url).await.map_err(|why| format!("{url} gives no keys: {why}"))?
            }
            (None, _) => return Ok(()),
        };
        self.replace(provider, &text)
    }

    /// Uses the keys in this text from now on.
    ///
    /// # Errors
    /// It is no set of keys; those from before stay in use.
    pub(crate) fn replace(&self, provider: &Provider, text: &[u8]) -> Result<(), String> {
        let keys = (text.len() <= KEYS_BYTES_MAX).then(|| serde_json::from_slice::<JwkSet>(text));
        let Some(Ok(JwkSet { keys })) = keys else {
            return Err("the keys of the OpenID provider are no JSON Web Key Set".to_string());
        };
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.provider.as_ref() == Some(provider) {
            if *current.keys != keys {
                (current.keys, current.known) = (Arc::new(keys), HashMap::new());
            }
            self.is_wanted.store(false, Relaxed);
        }
        Ok(())
    }
}

async fn fetch(url: &str) -> reqwest::Result<Vec<u8>> {
    let http = reqwest::Client::builder()
        .timeout(FETCH_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .build()?;
    let mut answer = http.get(url).send().await?.error_for_status()?;
    let mut all = Vec::new();
    // One byte more than is taken shows that it is too much.
    while let Some(chunk) = answer.chunk().await?
        && all.len() <= KEYS_BYTES_MAX
    {
        all.extend_from_slice(&chunk);
    }
    Ok(all)
}

/// Verifies a signature with a public key. Algorithms with a shared secret verify none.
struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signed: &Vec<u8>) -> Result<(), signature::Error> {
        use ring_signature as of;
        let rsa = |parameters| match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                of::RsaPublicKeyComponents { n, e }.verify(parameters, message, signed)
            }
            DecodingKeyKind::SecretOrDer(_) => Err(Unspecified),
        };
        let ec = |algorithm| match self.key.kind() {
            DecodingKeyKind::SecretOrDer(point) => {
                of::UnparsedPublicKey::new(algorithm, point).verify(message, signed)
            }
            DecodingKeyKind::RsaModulusExponent { .. } => Err(Unspecified),
        };
        let verified = match self.algorithm {
            Algorithm::RS256 => rsa(&of::RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => rsa(&of::RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => rsa(&of::RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => rsa(&of::RSA_PSS_2048_8192_SHA256),
            Algorithm::ES256 => ec(&of::ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => ec(&of::ECDSA_P384_SHA384_FIXED),
            _ => Err(Unspecified),
        };
        verified.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

/// Installs ring to verify signatures, as for TLS.
fn install() {
    static PROVIDER: CryptoProvider = CryptoProvider {
        signer_factory: |_, _| Err(ErrorKind::InvalidAlgorithm.into()),
        verifier_factory: |algorithm, key| {
            Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.clone() }))
        },
        jwk_utils: JwkUtils::new_unimplemented(),
    };
    // It has been installed before.
    let _ = PROVIDER.install_default();
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
    use ring::hmac;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
    use serde_json::json;

    use super::*;
    use crate::access::audit::Audit;
    use crate::access::door::{Door, Refused};
    use crate::access::file::{groups, subject};
    use crate::access::peer::Peer;
    use crate::access::tokens::Tokens;

    const NOW: u64 = 1_800_000_000;

    /// A provider with one key.
    struct Issuer {
        key: EcdsaKeyPair,
        provider: Provider,
        keys: Keys,
    }

    impl Issuer {
        async fn new(folder: &std::path::Path) -> Self {
            let (random, how) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
            let pkcs8 = EcdsaKeyPair::generate_pkcs8(how, &random).unwrap();
            let key = EcdsaKeyPair::from_pkcs8(how, pkcs8.as_ref(), &random).unwrap();
            let point = key.public_key().as_ref();
            let set = json!({ "keys": [{
                "kty": "EC", "crv": "P-256", "kid": "k1", "alg": "ES256", "use": "sig",
                "x": BASE64.encode(&point[1..33]), "y": BASE64.encode(&point[33..]),
            }]});
            let file = folder.join("keys.json");
            std::fs::write(&file, set.to_string()).unwrap();
            let provider = Provider {
                issuer: "https://login.example".to_string(),
                audience: "memtape".to_string(),
                keys_file: Some(file),
                keys_url: None,
                name_claim: "email".to_string(),
                groups_claim: groups(),
            };
            let keys = Keys::default();
            keys.look(&provider, 0).await.unwrap();
            Self { key, provider, keys }
        }

        fn token(&self, header: &Value, claims: &Value) -> String {
            let text = |part: &Value| BASE64.encode(part.to_string());
            let message = format!("{}.{}", text(header), text(claims));
            let signed = self.key.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
            format!("{message}.{}", BASE64.encode(signed.as_ref()))
        }

        fn user(&self, token: &str) -> Option<User> {
            self.keys.user(&self.provider, token, NOW)
        }
    }

    fn claims() -> Value {
        json!({
            "iss": "https://login.example", "aud": "memtape", "sub": "17", "exp": NOW + 60,
            "nbf": NOW - 60, "email": "alice@example.org", "email_verified": true,
            "groups": ["team-a", 7],
        })
    }

    fn changed(name: &str, value: Value) -> Value {
        let mut claims = claims();
        claims[name] = value;
        claims
    }

    #[tokio::test]
    async fn a_token_that_its_provider_signed_names_the_user() {
        let folder = tempfile::tempdir().unwrap();
        let issuer = Issuer::new(folder.path()).await;
        let header = json!({ "alg": "ES256", "kid": "k1" });
        let alice =
            User { name: "oidc:alice@example.org".to_string(), groups: vec!["team-a".to_string()] };
        assert_eq!(issuer.user(&issuer.token(&header, &claims())), Some(alice.clone()));
        // An extension that must be understood, and is not.
        let critical = json!({ "alg": "ES256", "kid": "k1", "crit": ["b64"], "b64": false });
        assert_eq!(issuer.user(&issuer.token(&critical, &claims())), None);
        let unnamed = json!({ "alg": "ES256" });
        assert_eq!(issuer.user(&issuer.token(&unnamed, &claims())), Some(alice.clone()));
        let several = changed("aud", json!(["other", "memtape"]));
        assert_eq!(issuer.user(&issuer.token(&header, &several)), Some(alice.clone()));
        let as_text = changed("email_verified", json!("true"));
        assert_eq!(issuer.user(&issuer.token(&header, &as_text)), Some(alice));
        let none = changed("groups", Value::Null);
        assert_eq!(issuer.user(&issuer.token(&header, &none)).unwrap().groups, [""; 0]);
    }

    /// Modulus of an RSA key, and a token that it signed; the key itself is gone.
    const RSA_MODULUS: &str = "\
         1ehKYFLsb2PjwRi5LwU8U35bBcgqdWajsY9TnxNK2evWwVii4jHduvThVD5MIKJcgzpYeOAhP8x56OTDX-nhOktF\
         lJo5Cy140rjLGDGFH3nul7zrgRGixJGb9fBneHxXGs9W3v4pxDY8j6dRBUJEYFvZP5Z6OdfEjqZRrx_h_FvHtDpO\
         KJWazZjw9TCbi6iAbhbWanDYVET4FzKGwbhSoFITAW-ZJYqbfiBWOh7Xt_NCD6S1IVAj4EvAz3rZrwnKutJA1jAv\
         KX6BcXJJg8PnhsAbE7xL4_wZcgrWTMzwec321w4tV9DSRHXyWrioruFlv-D9-kRM_QxSbXNmkL14NQ";
    const RSA_TOKEN: &str = "\
         eyJhbGciOiJSUzI1NiIsImtpZCI6InIxIn0.eyJpc3MiOiJodHRwczovL2xvZ2luLmV4YW1wbGUiLCJhdWQiOiJt\
         ZW10YXBlIiwic3ViIjoiMTciLCJleHAiOjE4MDAwMDAwNjAsImVtYWlsIjoiYWxpY2VAZXhhbXBsZS5vcmcifQ.m\
         hjlftKa95zZrHI4PItP33kpXsERPaTe3b_DNI2Y1iJiTJSwV76MWFqlvku0NF3FPjpvId-ocixkh9cUFjmzSH9iP\
         _DdY-7LcNmKslQRNGoM7yjm626PMudyFFQnIpa-QG6GCp5evMv9xa4appL5FEmEG_LRZkIZRBvmCPn0fSa3w1qe1\
         WoSo8nCtlzHOx63ZKRedt171ApiUqZJAB4pZOWw9P5pFKwUtjPtZPu-3LvydyuyylXr_YGvXieHM2u-t4wa5LPAi\
         7isU0N0TmMcrgBgYWLpcdjRYJVLG_hOaP_teyssHaKuOPp3dWHgbwsjCv4RzZRGnmP6wYQ8UYFfPA";

    #[tokio::test]
    async fn signatures_of_rsa_are_verified() {
        let folder = tempfile::tempdir().unwrap();
        let mut issuer = Issuer::new(folder.path()).await;
        issuer.provider.name_claim = subject();
        let key = json!({ "kty": "RSA", "kid": "r1", "e": "AQAB", "n": RSA_MODULUS });
        let set = json!({ "keys": [key] }).to_string();
        std::fs::write(folder.path().join("keys.json"), set).unwrap();
        issuer.keys.look(&issuer.provider, 0).await.unwrap();
        assert_eq!(issuer.user(RSA_TOKEN).unwrap().name, "oidc:17");
        let (message, signed) = RSA_TOKEN.rsplit_once('.').unwrap();
        let reversed: String = signed.chars().rev().collect();
        assert_eq!(issuer.user(&format!("{message}.{reversed}")), None);
    }

    #[tokio::test]
    async fn other_tokens_name_no_user() {
        let folder = tempfile::tempdir().unwrap();
        let issuer = Issuer::new(folder.path()).await;
        let header = json!({ "alg": "ES256", "kid": "k1" });
        for (name, value) in [
            ("iss", json!("https://evil.example")),
            ("iss", Value::Null),
            ("aud", json!("other")),
            ("aud", Value::Null),
            ("exp", json!(NOW)),
            ("exp", json!("never")),
            ("exp", Value::Null),
            ("nbf", json!(NOW + 1)),
            ("nbf", json!("never")),
            ("email", json!("")),
            ("email", json!("a".repeat(NAME_BYTES_MAX + 1))),
            ("email", json!(["alice@example.org"])),
            ("email", Value::Null),
            ("email_verified", json!(false)),
            ("email_verified", json!("false")),
            ("email_verified", json!(1)),
            ("email_verified", Value::Null),
        ] {
            let claims = changed(name, value);
            assert_eq!(issuer.user(&issuer.token(&header, &claims)), None, "{claims}");
        }
        // Signed by another, by none, or with the public key as a secret.
        let good = issuer.token(&header, &claims());
        let (message, signed) = good.rsplit_once('.').unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let other = Issuer::new(elsewhere.path()).await;
        let none = json!({ "alg": "none", "kid": "k1" });
        let secret = json!({ "alg": "HS256", "kid": "k1" });
        let text = |part: &Value| BASE64.encode(part.to_string());
        let as_secret = format!("{}.{}", text(&secret), text(&claims()));
        let key = hmac::Key::new(hmac::HMAC_SHA256, issuer.key.public_key().as_ref());
        let tag = hmac::sign(&key, as_secret.as_bytes());
        let renamed = text(&changed("email", json!("root@example.org")));
        for token in [
            other.token(&header, &claims()),
            format!("{}.{}.", text(&none), text(&claims())),
            issuer.token(&none, &claims()),
            issuer.token(&json!({ "alg": "RS256", "kid": "k1" }), &claims()),
            issuer.token(&json!({ "alg": "ES384", "kid": "k1" }), &claims()),
            issuer.token(&json!({ "alg": "ES256", "kid": "k2" }), &claims()),
            format!("{as_secret}.{}", BASE64.encode(tag.as_ref())),
            format!("{}.{renamed}.{signed}", message.split_once('.').unwrap().0),
            message.to_string(),
            format!("{good}."),
            "..".to_string(),
            String::new(),
            "a".repeat(TOKEN_BYTES_MAX + 1),
        ] {
            assert_eq!(issuer.user(&token), None, "{token}");
        }
        assert!(issuer.user(&good).is_some());
        // Keys that are replaced count at once; those that make no sense change nothing.
        std::fs::copy(elsewhere.path().join("keys.json"), folder.path().join("keys.json")).unwrap();
        issuer.keys.look(&issuer.provider, 0).await.unwrap();
        assert_eq!(issuer.user(&good), None);
        assert!(issuer.user(&other.token(&header, &claims())).is_some());
        std::fs::write(folder.path().join("keys.json"), "nonsense").unwrap();
        assert!(issuer.keys.look(&issuer.provider, 0).await.is_err());
        assert!(issuer.user(&other.token(&header, &claims())).is_some());
    }

    #[tokio::test]
    async fn keys_count_for_their_own_provider_alone() {
        let folder = tempfile::tempdir().unwrap();
        let issuer = Issuer::new(folder.path()).await;
        let header = json!({ "alg": "ES256", "kid": "k1" });
        let (old, new) = (claims(), changed("iss", json!("https://new.example")));
        let (old, new) = (issuer.token(&header, &old), issuer.token(&header, &new));
        let next = Provider {
            issuer: "https://new.example".to_string(),
            keys_file: Some(folder.path().join("missing.json")),
            ..issuer.provider.clone()
        };
        assert!(issuer.user(&old).is_some());
        // Neither before the new keys are looked for, nor while there are none.
        assert_eq!(issuer.keys.user(&next, &new, NOW), None);
        assert!(issuer.keys.look(&next, 0).await.is_err());
        assert_eq!(issuer.keys.user(&next, &new, NOW), None);
        assert_eq!(issuer.user(&old), None);
        std::fs::rename(folder.path().join("keys.json"), folder.path().join("missing.json"))
            .unwrap();
        issuer.keys.look(&next, 0).await.unwrap();
        assert!(issuer.keys.user(&next, &new, NOW).is_some());
    }

    /// A network floods the coordinator with tokens that no provider signed. What remains: a good
    /// token of that network that was not seen before is refused as well, for a moment.
    #[tokio::test]
    async fn a_flood_of_wrong_tokens_refuses_no_token_that_was_seen() {
        let folder = tempfile::tempdir().unwrap();
        let issuer = Issuer::new(folder.path()).await;
        let (store, _, _) = memtape_store::Store::open(&folder.path().join("store")).unwrap();
        let roles = folder.path().join("access.toml");
        let keys = folder.path().join("keys.json");
        let text = format!(
            "[oidc]\nissuer = \"https://login.example\"\naudience = \"memtape\"\n\
             keys_file = {keys:?}\n\
             name_claim = \"email\"\n[[grant]]\nrole = \"viewer\"\ngroups = [\"team-a\"]\n"
        );
        std::fs::write(&roles, text).unwrap();
        let audit = Audit::new(store.clone(), Arc::default(), Vec::new());
        let door =
            Door::new(Some(roles), None, Tokens::new(audit.clone(), Vec::new()), audit).unwrap();
        door.keys.look(&door.policy().provider.clone().unwrap(), 0).await.unwrap();
        let header = json!({ "alg": "ES256", "kid": "k1" });
        let token = |email: &str| {
            let mut claims = changed("email", json!(email));
            (claims["exp"], claims["nbf"]) = (json!(u64::MAX), json!(0));
            issuer.token(&header, &claims)
        };
        let of = |network| Peer::new(([10, 0, 0, network], 7).into());
        let (seen, new) = (token("alice@example.org"), token("bob@example.org"));
        assert!(door.caller(&of(1), Some(&seen)).is_ok());
        let wrong = (0..100_000).map(|number| format!("{new}{number}"));
        let mut refused = wrong.map(|wrong| door.caller(&of(1), Some(&wrong)).unwrap_err());
        let refused = refused.find(|why| *why != Refused::BadToken);
        assert!(matches!(refused, Some(Refused::TooMany(_))), "{refused:?}");
        assert!((0..1000).all(|_| door.caller(&of(1), Some(&seen)).is_ok()));
        assert!(door.caller(&of(2), Some(&new)).is_ok(), "another network's");
        // One user's tokens displace none of another's, and other keys have signed none of them.
        let remember = |name: &str, number: usize| {
            let user = User { name: name.to_string(), groups: Vec::new() };
            let (keys, token) =
                (issuer.keys.of(&issuer.provider).unwrap(), format!("{name}{number}"));
            issuer.keys.remember(&keys, &token, Known { user, ends_seconds: u64::MAX }, NOW);
        };
        (0..20).for_each(|number| remember("alice", number));
        (0..TOKENS_KNOWN_MAX).for_each(|number| remember("mallory", number));
        assert_eq!(issuer.keys.current.read().unwrap().known.len(), TOKENS_KNOWN_MAX);
        let known = |token: &str| issuer.keys.known(&issuer.provider, token, NOW).is_some();
        assert!((0..20).all(|number| known(&format!("alice{number}"))));
        assert!(issuer.user(&seen).is_some() && known(&seen));
        // Another issuer writes other keys into the same file.
        Issuer::new(folder.path()).await;
        issuer.keys.look(&issuer.provider, 0).await.unwrap();
        assert!(!known(&seen) && issuer.user(&seen).is_none());
    }

    #[test]
    fn the_keys_of_another_provider_are_fetched_at_once() {
        let keys = Keys::default();
        let provider = |url: &str| Provider {
            issuer: "https://login.example".to_string(),
            audience: "memtape".to_string(),
            keys_file: None,
            keys_url: Some(url.to_string()),
            name_claim: subject(),
            groups_claim: groups(),
        };
        let (first, second) = (provider("https://a.example"), provider("https://b.example"));
        assert!(keys.begin(&first, 7) && !keys.begin(&first, 8));
        assert!(keys.begin(&second, 8) && !keys.begin(&second, 8 + FETCH_EVERY_NS - 1));
        assert!(keys.begin(&second, 8 + FETCH_EVERY_NS));
        keys.is_wanted.store(true, Relaxed);
        assert!(keys.begin(&second, 8 + FETCH_EVERY_NS + FETCH_AGAIN_NS));
    }
}
