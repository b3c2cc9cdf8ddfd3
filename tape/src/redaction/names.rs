//! Which names of options, variables and fields mean a secret.
//!
//! A name is cut into words (`--wandb-api-key`, `wandbApiKey` and `WANDB_API_KEY` have the same
//! three), and its last ones decide. Training commands have many tokens and keys that are none:
//! `--pad-token`, `--max-tokens`, `--sort-key`.

use alloc::string::String;
use alloc::vec::Vec;

/// A name that ends with one of these, spelled together or not, means a secret.
const ENDINGS: &str = "\
    password passwords passw0rd apikeys accesskeys secretkeys privatekeys authtokens \
    accesstokens apitokens passwd passphrase passcode secret secrets credential credentials \
    apikey accesskey secretkey privatekey authtoken accesstoken apitoken hftoken \
    connectionstring clientsecret";

/// A name that is, or ends with, one of these words.
const LAST: &str = "auth authorization jwt cookie signature sig sas passkey cred creds otp";

/// A `key` after one of these is a secret.
const KEYS: &str = "\
    api access secret private account auth client encryption license licence master service \
    shared signing ssh storage subscription admin hf wandb comet neptune clearml openai \
    anthropic aws gcp azure mlflow swanlab cohere webhook deploy project";

/// A `pass` after one of these is a password; training has forward passes and multiple passes.
const PASSES: &str = "\
    user db database admin root login mail smtp imap ssh ftp http proxy mysql pg postgres \
    redis mongo registry docker";

/// A name that ends with one of these counts as the words before it: `--hf-token-value`.
const VALUES: &str = "value string";

/// A `token` after one of these is no secret.
const NO_TOKENS: &str = "\
    pad padding eos bos unk mask sep cls image video audio special stop start end trigger \
    placeholder initializer max min num per next drop first last prefix suffix begin new added \
    extra input output target source language text prompt response class concept modifier fim \
    newline boi eoi think tool speech speaker answer";

/// Names that operators added, each as its words spelled together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    added: Vec<String>,
}

impl Names {
    pub(super) fn with<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let added = names.into_iter().map(|name| words(name).concat());
        Self { added: added.filter(|name| !name.is_empty()).collect() }
    }

    /// Does this name mean a secret?
    pub(super) fn is_secret(&self, name: &str) -> bool {
        let words = words(name);
        let words = without_values(&words);
        let Some((last, before)) = words.split_last() else { return false };
        let together = words.concat();
        let ends = |ending: &str| together.ends_with(ending);
        let previous = before.last().map(String::as_str);
        if ENDINGS.split(' ').any(ends)
            || self.added.iter().any(|name| ends_with_words(words, name))
        {
            return true;
        }
        // A variable: only programs that want a secret have these.
        let is_variable = !name.chars().any(char::is_lowercase);
        match last.as_str() {
            "token" => previous.is_none_or(|word| !is_one_of(NO_TOKENS, word)),
            // There are counts of tokens of every kind.
            "tokens" => previous.is_none_or(|word| is_one_of(KEYS, word)),
            "key" => previous.is_some_and(|word| is_variable || is_one_of(KEYS, word)),
            "keys" => previous.is_some_and(|word| is_one_of(KEYS, word)),
            "pass" | "pw" => previous.is_none_or(|word| is_variable || is_one_of(PASSES, word)),
            "pwd" => previous.is_some(),
            last => is_one_of(LAST, last),
        }
    }
}

fn is_one_of(words: &str, word: &str) -> bool {
    words.split(' ').any(|known| known == word)
}

/// Is the value a password in a connection string, as in `Server=x;Pwd=y`? `PWD=/data` is the
/// folder of a shell.
pub(super) fn is_assigned_password(name: &str, value: &str) -> bool {
    let is_folder = name == "PWD" && value.trim_start_matches(['"', '\'']).starts_with(['/', '$']);
    name.eq_ignore_ascii_case("pwd") && !is_folder
}

/// The words of a name without a number at its end, as in `OPENAI_API_KEY_2`, and without a word
/// for a value.
fn without_values(words: &[String]) -> &[String] {
    let is_value =
        |word: &str| is_one_of(VALUES, word) || word.bytes().all(|byte| byte.is_ascii_digit());
    match words {
        [rest @ .., last] if !rest.is_empty() && is_value(last) => without_values(rest),
        _ => words,
    }
}

/// Is the value certainly no secret, even after a secret's name?
pub(super) fn is_plain(value: &str) -> bool {
    let plain = ["", "true", "false", "yes", "no", "none", "null", "0", "1"];
    let bare = value.trim_matches(['"', '\'', ',', '}', ']', ')', ';']);
    plain.iter().any(|plain| bare.eq_ignore_ascii_case(plain))
}

/// Do the last words of a name, joined, equal `ending`?
fn ends_with_words(words: &[String], ending: &str) -> bool {
    (0..words.len()).any(|first| words[first..].concat() == ending)
}

/// The words of a name, in lower case.
fn words(name: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let mut was_lower = false;
    for mark in name.chars() {
        let begins = mark.is_uppercase() && was_lower;
        if (begins || !mark.is_alphanumeric()) && !word.is_empty() {
            words.push(core::mem::take(&mut word));
        }
        if mark.is_alphanumeric() {
            word.extend(mark.to_lowercase());
        }
        was_lower = mark.is_lowercase();
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}
