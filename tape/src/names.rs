//! Enums whose values are words, each with one spelling in JSON, files and output.

/// Defines an enum of words, and its derives. The string behind `in` is the case of the words, as
/// serde and strum call it.
#[macro_export]
macro_rules! names {
    ($(#[$attribute:meta])* $vis:vis enum $name:ident in $case:literal { $($values:tt)* }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[derive(strum::EnumString, strum::IntoStaticStr, strum::VariantArray)]
        #[strum(serialize_all = $case)]
        #[derive(serde::Deserialize, serde::Serialize)]
        #[serde(rename_all = $case)]
        $vis enum $name { $($values)* }

        impl $name {
            /// The word in JSON, files and output.
            $vis fn as_str(self) -> &'static str {
                self.into()
            }
        }
    };
}
