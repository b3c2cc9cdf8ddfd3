//! The address of a coordinator, as a user writes it and as a URL.
//!
//! `node7`, `10.0.0.1:7771`, `[::1]:7771` and `http://node7:7771/` are accepted. Where no scheme is
//! given it is https with certificates and http without; the port is then 7771. This file sends
//! nothing.

use crate::args::Mistakes;

/// Port of a coordinator without a configured port.
const PORT_DEFAULT: u16 = 7771;

/// The URL of a coordinator, without a slash at its end.
/// Fails when the text is no address.
pub(crate) fn url(text: &str, has_tls: bool) -> Result<String, Mistakes> {
    let text = text.trim();
    let mistake = || {
        let example = format!("127.0.0.1:{PORT_DEFAULT}");
        Mistakes::one(format!(
            "{text:?} is no address of a coordinator such as {example} or http://{example}; it \
             comes from --coordinator or MEMTAPE_COORDINATOR"
        ))
    };
    let (full, has_scheme) = match text.split_once("://") {
        Some(("http" | "https", rest)) if !rest.starts_with('/') && !rest.is_empty() => {
            (text.to_string(), true)
        }
        Some(_) => return Err(mistake()),
        None if has_tls => (format!("https://{text}"), false),
        None => (format!("http://{text}"), false),
    };
    let mut parsed = reqwest::Url::parse(&full).map_err(|_| mistake())?;
    if parsed.host_str().is_none_or(|host| host.is_empty() || host.contains(char::is_whitespace)) {
        return Err(mistake());
    }
    // A scheme says its own port: 80 or 443.
    if !has_scheme && parsed.port().is_none() && parsed.set_port(Some(PORT_DEFAULT)).is_err() {
        return Err(mistake());
    }
    Ok(parsed.as_str().trim_end_matches('/').to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood_without_a_scheme() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(url(text, false).ok().as_deref(), expected, "{text:?}");
        };
        assert_eq!(url("node7", true).ok().as_deref(), Some("https://node7:7771"));
        assert_eq!(url("http://node7", true).ok().as_deref(), Some("http://node7"));
        check("127.0.0.1:33577", Some("http://127.0.0.1:33577"));
        check("localhost:7000", Some("http://localhost:7000"));
        check("node7", Some("http://node7:7771"));
        check("[::1]:9", Some("http://[::1]:9"));
        check("http://a.b:7771/", Some("http://a.b:7771"));
        check("http://a.b", Some("http://a.b"));
        check("https://a.b", Some("https://a.b"));
        check("http://proxy/memtape/", Some("http://proxy/memtape"));
        check("ftp://x", None);
        check("", None);
        check("http://", None);
        check("a b:1", None);
        check("node:99999", None);
    }
}
