// The title of the tab: the sentence that matters most in the view.

import { signal } from '@preact/signals';
import { useEffect } from 'preact/hooks';

export const title = signal('');

/** Sets the title while the view is shown. */
export function useTitle(text: string) {
  useEffect(() => {
    title.value = text;
    return () => {
      title.value = '';
    };
  }, [text]);
}
