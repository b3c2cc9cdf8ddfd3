//! Any bytes as the keys of an OpenID provider and as a token.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use memtape_coordinator::testing::FuzzedTokens;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use serde_json::{Value, json};

const NOW_SECONDS: u64 = 1_800_000_000;

/// The key of RFC 7515, appendix A.3: its public point, and its secret part.
const X: &str = "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU";
const Y: &str = "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0";
const SECRET: &str = "jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9-E9LI";

/// Reads a token: its header and its claims, which are signed here, and the keys of the provider,
/// divided by zeros. Without keys they are those that verify the signature. The bytes are also a
/// token as they are.
pub(crate) fn read(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let (header, claims) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let keys = parts.next().filter(|keys| !keys.is_empty());
    let key = json!({ "kty": "EC", "crv": "P-256", "kid": "k1", "alg": "ES256", "x": X, "y": Y });
    let own = json!({ "keys": [key] }).to_string();
    let Ok(tokens) = FuzzedTokens::new(keys.unwrap_or(own.as_bytes())) else { return };
    let raw = String::from_utf8_lossy(data);
    if keys.is_none() {
        assert_eq!(tokens.user(&raw, NOW_SECONDS), None, "{raw:?} has no signature");
    }
    let message = format!("{}.{}", BASE64.encode(header), BASE64.encode(claims));
    let signed = BASE64.encode(sign(message.as_bytes()));
    let Some(name) = tokens.user(&format!("{message}.{signed}"), NOW_SECONDS) else { return };
    let claims: Value = serde_json::from_slice(claims).expect("the claims were read");
    let is_meant = |claim: &Value, text: &str| match claim {
        Value::Array(all) => all.iter().any(|one| one == text),
        one => one == text,
    };
    assert!(is_meant(&claims["aud"], "memtape"), "{claims}");
    assert!(is_meant(&claims["iss"], "https://login.example"), "{claims}");
    assert!(claims["exp"].as_u64().is_some_and(|end| end > NOW_SECONDS), "{claims}");
    let email = claims["email"].as_str().expect("the name of the user");
    assert_eq!(name, format!("oidc:{email}"));
    assert_eq!(tokens.user(&format!("{message}0.{signed}"), NOW_SECONDS), None, "it was changed");
}

fn sign(message: &[u8]) -> Vec<u8> {
    let bytes = |text: &str| BASE64.decode(text).expect("base64");
    let (secret, point) = (bytes(SECRET), [vec![4], bytes(X), bytes(Y)].concat());
    let (how, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
    let key = EcdsaKeyPair::from_private_key_and_public_key(how, &secret, &point, &random);
    let key = key.expect("a key");
    key.sign(&random, message).expect("a signature").as_ref().to_vec()
}
