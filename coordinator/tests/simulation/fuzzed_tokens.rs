//! The reader of an OpenID provider's keys and tokens, for a fuzzer.

use crate::access::Keys;
use crate::access::file::{Policy, Provider};

/// Settings of the provider.
const ROLES: &str = r#"
[oidc]
issuer = "https://login.example"
audience = "memtape"
keys_file = "keys.json"
name_claim = "email"
"#;

/// A provider with its keys.
#[derive(Debug)]
pub struct FuzzedTokens {
    keys: Keys,
    provider: Provider,
}

impl FuzzedTokens {
    /// A provider `https://login.example`, whose tokens for `memtape` name a user by `email`, with
    /// these keys.
    ///
    /// # Errors
    /// They are no keys.
    pub fn new(keys: &[u8]) -> Result<Self, String> {
        let provider = Policy::parse(ROLES)?.provider.ok_or("there is no provider")?;
        let tokens = Self { keys: Keys::default(), provider };
        tokens.keys.begin(&tokens.provider, 0);
        tokens.keys.replace(&tokens.provider, keys)?;
        Ok(tokens)
    }

    /// Name of the user of a token at a time; none where it is not valid.
    pub fn user(&self, token: &str, now_seconds: u64) -> Option<String> {
        self.keys.user(&self.provider, token, now_seconds).map(|user| user.name)
    }
}
