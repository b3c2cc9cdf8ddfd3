//! Takes secrets out of command lines, before they leave the node.
//!
//! The value of an option, of a variable or of a field whose name says that it is a secret
//! (`--wandb-key=…`, `--api-key …`, `HF_TOKEN=…`, `"password": "…"`), the user and the password of
//! a URL and behind `-u`, what follows `Bearer`, and words with the shape of well-known tokens
//! become [`MARK`].
//! Behind a secret field with its colon the rest of an argument goes (`Authorization: Token …`); of
//! a line of words, two words behind `Authorization:` and all cookies behind `Cookie:`.
//! Operators add names. [`names`] decides which names are secret, [`shapes`] which words.
//!
//! The line is read as words, not as a shell reads it. Where this is in doubt, more is taken out
//! rather than less. A secret that nothing announces (`login 0123abcd`) stays.

use alloc::string::String;
use alloc::vec::Vec;

pub mod names;
pub mod shapes;

use names::Names;

/// Stands where a secret was.
pub const MARK: &str = "[redacted]";

/// Characters that end a value behind its closing quote.
const AFTER_QUOTE: &[char] = &[',', '}', ']', ')', '&', ';', '|'];

/// Names of the values to redact in command lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redaction {
    names: Names,
}

impl Redaction {
    /// Redacts the values of these names, beside the built-in ones. Case, `-`, `_` and `.` make no
    /// difference; `licence` means `--my-licence`, too.
    pub fn with_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self { names: Names::with(names) }
    }

    /// Redacts a command line given as one text, such as the line on a tape.
    pub fn line(&self, line: &str) -> String {
        let mut reader = Reader::new(self);
        reader.text(line);
        reader.out
    }

    /// A command line whose arguments are known; joined with spaces. A value may have spaces.
    pub fn arguments<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> String {
        let mut reader = Reader::new(self);
        for argument in arguments {
            if !reader.out.is_empty() {
                reader.out.push(' ');
            }
            reader.argument(argument);
        }
        reader.out
    }
}

/// Reads a command line word by word.
struct Reader<'a> {
    names: &'a Names,
    out: String,
    /// Number of the next words that are values to be taken out.
    values_next: usize,
    /// True for cookies: a `;` behind one announces another.
    is_cookie: bool,
    /// Inside of a value that ends with this quote.
    open_quote: Option<char>,
    /// True if the last word ends with the name of a secret: a `:` or `=` may follow.
    is_named: bool,
    /// True if the last word is an option for `USER:PASSWORD`.
    is_login: bool,
}

impl<'a> Reader<'a> {
    fn new(redaction: &'a Redaction) -> Self {
        let names = &redaction.names;
        Self {
            names,
            out: String::new(),
            values_next: 0,
            is_cookie: false,
            open_quote: None,
            is_named: false,
            is_login: false,
        }
    }

    /// Reads one argument: a value that begins in it ends with it.
    fn argument(&mut self, argument: &str) {
        let is_value = self.values_next > 0 && !argument.starts_with("--");
        let first = argument.split(char::is_whitespace).next().unwrap_or_default();
        let assigned = first.find('=').filter(|_| argument.len() > first.len());
        if is_value && argument.contains(char::is_whitespace) {
            self.out.push_str(MARK);
            self.values_next = 0;
        } else if let Some(at) = assigned
            && self.names.is_secret(&first[..at])
        {
            self.out.push_str(&argument[..=at]);
            self.out.push_str(MARK);
        } else if let Some(at) = self.field(argument) {
            let (field, value) = argument.split_at(at);
            self.text(field);
            self.out.push_str(&value[..value.len() - value.trim_start().len()]);
            self.out.push_str(MARK);
            self.values_next = 0;
        } else {
            self.text(argument);
        }
        self.open_quote = None;
        self.is_cookie &= self.values_next > 0;
    }

    /// Start of a secret field's value, behind its colon, if it may have several words.
    fn field(&self, argument: &str) -> Option<usize> {
        let last_space = argument.rfind(char::is_whitespace)?;
        let colons = argument[..last_space].match_indices(':');
        let mut values = colons.map(|(at, _)| at + 1);
        values.find(|at| {
            let is_path = argument[*at..].starts_with("//");
            !is_path && self.names.is_secret(last_name(&argument[..at - 1]))
        })
    }

    /// Reads words and the spaces between them.
    fn text(&mut self, text: &str) {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let is_space = first.is_whitespace();
            let length = rest.find(|next: char| next.is_whitespace() != is_space);
            let (part, after) = rest.split_at(length.unwrap_or(rest.len()));
            match is_space {
                true if self.open_quote.is_some() => {}
                true => self.out.push_str(part),
                false => self.word(part),
            }
            rest = after;
        }
    }

    fn word(&mut self, word: &str) {
        let assignment = self.assignment(word);
        let is_login = core::mem::take(&mut self.is_login) && is_login(word);
        self.is_named = false;
        if let Some(quote) = self.open_quote {
            // The mark stands where the value began.
            let Some(end) = word.find(quote) else { return };
            self.open_quote = None;
            self.behind(&word[end + quote.len_utf8()..]);
        } else if let Some(mark) = assignment {
            self.out.push_str(mark);
            self.values_next = 0;
            match word.len() > mark.len() {
                true => self.value(&word[mark.len()..]),
                false => self.values_next = 1,
            }
        } else if is_login {
            (self.values_next, self.is_cookie) = (0, false);
            self.value(word);
        } else if self.values_next > 0 && !word.starts_with("--") {
            self.values_next -= 1;
            self.value(word);
        } else {
            (self.values_next, self.is_cookie) = (0, false);
            self.is_login = matches!(word, "-u" | "--user" | "-U" | "--proxy-user");
            self.pieces(word);
            // A value that was taken out of the word names nothing.
            self.is_named = !self.out.ends_with(MARK) && self.names.is_secret(last_name(word));
        }
        self.values_next = self.values_next.max(self.announced(word));
        let is_joined = word.ends_with(';');
        // A value whose quote is open ends in a later word.
        let goes_on = is_joined || self.open_quote.is_some() || ends_field(word, "cookie");
        self.is_cookie = goes_on && (self.is_cookie || has_field(word, "cookie"));
        if self.is_cookie && is_joined {
            self.values_next = self.values_next.max(1);
        }
    }

    /// The mark between a name and its value that a word begins with, where the word before is the
    /// name of a secret: `"password" : "x"`, `--api-key = x`.
    fn assignment<'w>(&self, word: &'w str) -> Option<&'w str> {
        let mark = [":=", ":", "="].into_iter().find(|mark| word.starts_with(mark))?;
        let is_path = word.starts_with("://");
        (self.is_named && !is_path).then(|| &word[..mark.len()])
    }

    /// Number of secret words behind this one: behind `Authorization:` a scheme and a value.
    fn announced(&self, word: &str) -> usize {
        match has_field(word, "authorization") {
            // The scheme may be in the word: `Authorization:Token`.
            true => 1 + usize::from(ends_field(word, "authorization")),
            false => usize::from(self.announces(word)),
        }
    }

    /// Is the next word a secret? After an option, a field with its colon, or a scheme of
    /// authorization.
    fn announces(&self, word: &str) -> bool {
        let bare = word.trim_matches(|mark: char| {
            mark.is_ascii_punctuation() && !matches!(mark, '-' | ':' | '_')
        });
        let end = bare.rsplit(['=', '"', '\'']).next().unwrap_or_default();
        let name = bare.strip_suffix(':').or(end.starts_with('-').then_some(end));
        is_scheme(end.rsplit(':').next().unwrap_or_default())
            || name.is_some_and(|name| self.names.is_secret(last_name(name)))
    }

    /// A value from the beginning of a word on.
    fn value(&mut self, word: &str) {
        if names::is_plain(word) {
            return self.out.push_str(word);
        }
        self.out.push_str(MARK);
        if let Some(rest) = word.strip_prefix(MARK) {
            return self.behind(rest);
        }
        let quote = word.chars().next().filter(|first| matches!(first, '"' | '\''));
        let Some(quote) = quote else { return };
        let inner = &word[quote.len_utf8()..];
        match inner.find(quote) {
            Some(end) => {
                self.behind(&inner[end + quote.len_utf8()..]);
            }
            None => self.open_quote = Some(quote),
        }
    }

    /// The rest of a word behind a value: what touches the value belongs to it.
    fn behind(&mut self, rest: &str) {
        let end = rest.find(AFTER_QUOTE).unwrap_or(rest.len());
        self.pieces(&rest[end..]);
    }

    /// Reads a word, or the end of one, that may hold names with their values.
    fn pieces(&mut self, word: &str) {
        let is_separator = |(_, mark): &(usize, char)| matches!(mark, '=' | ':');
        for (at, mark) in word.char_indices().filter(is_separator) {
            let (name, value) = (last_name(&word[..at]), &word[at + 1..]);
            let is_path = value.starts_with("//");
            let is_secret = self.names.is_secret(name)
                || (mark == '=' && names::is_assigned_password(name, value));
            if value.is_empty() || is_path || !is_secret {
                continue;
            }
            // The secret of `Authorization:Bearer` is the next word.
            if is_scheme(value) {
                continue;
            }
            self.out.push_str(&shapes::without_secrets(&word[..=at]));
            return self.value(value);
        }
        self.out.push_str(&shapes::without_secrets(word));
    }
}

/// Does a word have a field with a colon whose name ends with `name`?
fn has_field(word: &str, name: &str) -> bool {
    word.match_indices(':').any(|(at, _)| is_called(&word[..at], name))
}

/// Does a word end with a colon and a field whose name ends with `name`?
fn ends_field(word: &str, name: &str) -> bool {
    word.strip_suffix(':').is_some_and(|field| is_called(field, name))
}

/// Does the last name in a text end with `name`, ignoring case?
fn is_called(text: &str, name: &str) -> bool {
    let last = last_name(text).as_bytes();
    let start = last.len().checked_sub(name.len());
    start.is_some_and(|start| last[start..].eq_ignore_ascii_case(name.as_bytes()))
}

/// Is the word a user with a password? Not so are ids of user and group, and hosts with ports.
fn is_login(word: &str) -> bool {
    let bare = word.trim_matches(['"', '\'']);
    let parts = bare.split_once(':').filter(|(user, _)| !user.is_empty());
    parts.is_some_and(|(_, password)| {
        let is_number = password.bytes().all(|byte| byte.is_ascii_digit());
        !is_number && !password.starts_with('/') && !password.starts_with(MARK)
    })
}

/// Is the word a scheme of HTTP's authorization, which a secret follows?
fn is_scheme(word: &str) -> bool {
    ["bearer", "basic"].iter().any(|scheme| word.eq_ignore_ascii_case(scheme))
}

/// The name at the end of a text, without the quotes around it.
fn last_name(text: &str) -> &str {
    let text = text.trim_end_matches(['"', '\'', '\\']);
    let is_part = |mark: char| mark.is_alphanumeric() || matches!(mark, '_' | '-' | '.');
    let start = text.char_indices().rev().take_while(|(_, mark)| is_part(*mark)).last();
    start.map_or("", |(at, _)| &text[at..])
}

/// Names as they are given in an option or a variable: separated by commas.
pub fn listed(names: &str) -> Vec<&str> {
    names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests;
