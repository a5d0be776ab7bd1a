import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

export default defineConfig({
  base: "/ui/",
  plugins: [react()],
  build: {
    outDir: "../src/fumehood/web",
    emptyOutDir: true,
    assetsInlineLimit: 0, // the page's policy allows no data: URLs for scripts, styles and fonts
    chunkSizeWarningLimit: 800,
  },
  server: { proxy: { "/v1": "http://127.0.0.1:8080" } }, // `npm run dev`, beside a running `fumehood dev`
});
