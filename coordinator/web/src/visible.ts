// Characters that a reader does not see, written out: they hide text or turn its direction, so that
// a name looks like another one. Pure.

/** The hidden characters of `tape/src/visible.rs` (a test compares them), and control characters
 * that are no white space. */
const HIDDEN =
  /[\u{0}-\u{8}\u{b}\u{c}\u{e}-\u{1f}\u{7f}-\u{9f}\u{ad}\u{34f}\u{61c}\u{115f}-\u{1160}\u{17b4}-\u{17b5}\u{180b}-\u{180f}\u{200b}-\u{200f}\u{2028}-\u{202e}\u{2060}-\u{206f}\u{3164}\u{fe00}-\u{fe0f}\u{feff}\u{ffa0}\u{fff0}-\u{fffb}\u{fffe}-\u{ffff}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

/** A text with its hidden characters written out, as `\u{202e}`. */
export const visible = (text: string): string =>
  text.replace(HIDDEN, mark => `\\u{${mark.codePointAt(0)!.toString(16)}}`);
