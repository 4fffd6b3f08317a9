// The theme that was chosen on this page, before anything is drawn. Without a choice: that of the system.
"use strict";
try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* storage is switched off: the system's theme */ }
