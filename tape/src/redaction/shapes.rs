//! Secrets that are known by their shape: tokens of well-known services, and the user and the
//! password of a URL.

use alloc::string::String;

use super::MARK;

/// A kind of tokens.
struct Shape {
    /// Possible beginnings of the secret.
    prefixes: &'static str,
    /// Least characters behind the prefix.
    rest_min: usize,
    /// Characters that the secret may have beside letters and digits.
    also: &'static str,
    /// True if the secret has a digit: words without one are names.
    has_digit: bool,
}

const fn shape(
    prefixes: &'static str,
    rest_min: usize,
    also: &'static str,
    has_digit: bool,
) -> Shape {
    Shape { prefixes, rest_min, also, has_digit }
}

const SHAPES: [Shape; 16] = [
    shape("hf_ api_org_ ghp_ gho_ ghu_ ghs_ ghr_ AKIA ASIA npm_ dop_v1_ gsk_", 16, "", false),
    shape("github_pat_ sk_live_ sk_test_ rk_live_", 16, "_", false),
    shape("glpat-", 16, "-_.", false),
    shape("xoxb- xoxp- xoxa- xoxr- xoxs- xapp-", 10, "-", false),
    shape("AIza", 30, "-_", false),
    shape("ya29. nvapi- mtk_ dckr_pat_ dckr_oat_ hvs. hvb.", 16, "-_", false),
    shape("pypi-", 32, "-_", false),
    shape("eyJ", 20, "-_.", false),
    shape("whsec_", 16, "+/=", false),
    shape("r8_", 24, "", false),
    shape("SG.", 30, "-_.", false),
    shape("AGE-SECRET-KEY-1", 8, "", false),
    shape("hooks.slack.com/services/", 16, "/", false),
    shape("xai-", 20, "", true),
    shape("glsa_", 20, "_", true),
    shape("sk-", 16, "-_", true),
];

/// A text without the tokens and the users of URLs in it.
pub(super) fn without_secrets(text: &str) -> String {
    let text = without_users(text);
    let mut out = String::new();
    let mut rest = text.as_str();
    let mut is_inside = false;
    while let Some(first) = rest.chars().next() {
        let length = if is_inside { None } else { token_length(rest) };
        match length {
            Some(length) => {
                out.push_str(MARK);
                rest = &rest[length..];
                is_inside = true;
            }
            None => {
                out.push(first);
                rest = &rest[first.len_utf8()..];
                is_inside = first.is_ascii_alphanumeric();
            }
        }
    }
    out
}

/// The length of the token that a text begins with.
fn token_length(text: &str) -> Option<usize> {
    SHAPES.iter().find_map(|shape| {
        let prefix = shape.prefixes.split(' ').find(|prefix| text.starts_with(prefix))?;
        let rest = &text[prefix.len()..];
        let is_part = |mark: char| mark.is_ascii_alphanumeric() || shape.also.contains(mark);
        let length = rest.find(|mark| !is_part(mark)).unwrap_or(rest.len());
        let has_digit = rest[..length].contains(|mark: char| mark.is_ascii_digit());
        let is_token = length >= shape.rest_min && (has_digit || !shape.has_digit);
        is_token.then_some(prefix.len() + length)
    })
}

/// A text whose URLs have no user and no password.
fn without_users(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let host = &after[..after.find(['/', '?', '#']).unwrap_or(after.len())];
        let port = host.rsplit_once(':').map_or("", |(_, port)| port);
        // A password that was not escaped may hold what ends a host.
        let is_port = port.bytes().all(|byte| byte.is_ascii_digit());
        let user = if is_port { host.rfind('@') } else { after.rfind('@') };
        rest = match user {
            Some(end) => {
                out.push_str(MARK);
                &after[end..]
            }
            None => after,
        };
    }
    out.push_str(rest);
    out
}
