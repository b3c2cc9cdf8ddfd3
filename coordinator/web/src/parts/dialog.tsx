// A dialog above the page. While it is open the rest of the page takes no keys, and afterwards the
// focus is where it was before.

import type { ComponentChildren } from 'preact';
import { useLayoutEffect, useRef } from 'preact/hooks';

interface DialogOf {
  label: string;
  onClose: () => void;
  onKeyDown?: (event: KeyboardEvent) => void;
  children: ComponentChildren;
}

export function Dialog({ label, onClose, onKeyDown, children }: DialogOf) {
  const dialog = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const node = dialog.current!;
    node.showModal();
    // The browser gives the focus back when a dialog is closed, not when it is taken away.
    return () => node.close();
  }, []);
  // A click beside the content is one on the dialog itself.
  const clickBeside = (event: MouseEvent) => {
    if (event.target === dialog.current) onClose();
  };
  return (
    <dialog
      ref={dialog}
      aria-label={label}
      onClose={onClose}
      onKeyDown={onKeyDown}
      onClick={clickBeside}
    >
      <div class="dialog">{children}</div>
    </dialog>
  );
}
