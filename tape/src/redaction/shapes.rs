//! Secrets that are known by their shape: tokens of well-known services, and the user and the
//! password of a URL.

use alloc::string::String;

use super::MARK;

/// A kind of tokens.
struct Shape {
    prefix: &'static str,
    /// Least characters behind the prefix.
    rest_min: usize,
    /// Beside letters and digits it may have these.
    also: &'static str,
    /// It has a digit: others are names.
    has_digit: bool,
}

const fn shape(prefix: &'static str, rest_min: usize, also: &'static str) -> Shape {
    Shape { prefix, rest_min, also, has_digit: false }
}

const SHAPES: [Shape; 41] = [
    shape("hf_", 16, ""),
    shape("api_org_", 16, ""),
    shape("ghp_", 16, ""),
    shape("gho_", 16, ""),
    shape("ghu_", 16, ""),
    shape("ghs_", 16, ""),
    shape("ghr_", 16, ""),
    shape("github_pat_", 16, "_"),
    shape("glpat-", 16, "-_."),
    shape("xoxb-", 10, "-"),
    shape("xoxp-", 10, "-"),
    shape("xoxa-", 10, "-"),
    shape("xoxr-", 10, "-"),
    shape("xoxs-", 10, "-"),
    shape("xapp-", 10, "-"),
    shape("AKIA", 16, ""),
    shape("ASIA", 16, ""),
    shape("AIza", 30, "-_"),
    shape("ya29.", 16, "-_"),
    shape("npm_", 16, ""),
    shape("pypi-", 32, "-_"),
    shape("nvapi-", 16, "-_"),
    shape("mtk_", 16, "-_"),
    shape("eyJ", 20, "-_."),
    shape("sk_live_", 16, "_"),
    shape("sk_test_", 16, "_"),
    shape("rk_live_", 16, "_"),
    shape("whsec_", 16, "+/="),
    shape("dckr_pat_", 16, "-_"),
    shape("dckr_oat_", 16, "-_"),
    shape("dop_v1_", 16, ""),
    shape("hvs.", 16, "-_"),
    shape("hvb.", 16, "-_"),
    shape("gsk_", 16, ""),
    shape("r8_", 24, ""),
    shape("SG.", 30, "-_."),
    shape("AGE-SECRET-KEY-1", 8, ""),
    shape("hooks.slack.com/services/", 16, "/"),
    Shape { prefix: "xai-", rest_min: 20, also: "", has_digit: true },
    Shape { prefix: "glsa_", rest_min: 20, also: "_", has_digit: true },
    Shape { prefix: "sk-", rest_min: 16, also: "-_", has_digit: true },
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
        let rest = text.strip_prefix(shape.prefix)?;
        let is_part = |mark: char| mark.is_ascii_alphanumeric() || shape.also.contains(mark);
        let length = rest.find(|mark| !is_part(mark)).unwrap_or(rest.len());
        let has_digit = rest[..length].contains(|mark: char| mark.is_ascii_digit());
        let is_token = length >= shape.rest_min && (has_digit || !shape.has_digit);
        is_token.then_some(shape.prefix.len() + length)
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
